// Numbers as people read them. Pure.

export const NOTHING = '–';

function known(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

// Three significant digits, without an exponent.
function digits(value) {
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(2);
}

// 0.0421 -> "42.1 ms"
export function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 0.9995) return `${digits(value * 1e3)} ms`;
  return `${digits(value)} s`;
}

// Short, for axes: 0.05 -> "50 ms", 2.5 -> "2.5 s"
export function axisSeconds(value) {
  if (!known(value)) return NOTHING;
  if (value === 0) return '0';
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number(value.toPrecision(3))} s`;
}

// 12345 -> "12,345"
export function count(value) {
  if (!known(value)) return NOTHING;
  return Math.round(value).toLocaleString('en');
}

// 12.34 -> "12.3", 12345 -> "12,345"
export function rate(value) {
  if (!known(value)) return NOTHING;
  if (value >= 100) return count(value);
  if (value === 0) return '0';
  return value < 10 ? value.toFixed(2) : value.toFixed(1);
}

// Short, for axes: 12000 -> "12k"
export function axisCount(value) {
  if (!known(value)) return NOTHING;
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (value >= 1e3) return `${Number((value / 1e3).toPrecision(3))}k`;
  return String(Number(value.toPrecision(3)));
}

// 0.125 -> "13%"; what is not nothing is never "0%".
export function percent(ratio) {
  if (!known(ratio)) return NOTHING;
  if (ratio > 0 && ratio < 0.01) return '<1%';
  return `${Math.round(ratio * 100)}%`;
}

// 4.2e9 -> "4.20 GB/s"
export function bandwidth(bytes) {
  if (!known(bytes) || bytes <= 0) return NOTHING;
  const units = ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'];
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${digits(value)} ${units[unit]}`;
}

// 0.000042 -> "42.0 µs"
export function latency(value) {
  if (!known(value) || value <= 0) return NOTHING;
  if (value < 0.9995e-3) return `${digits(value * 1e6)} µs`;
  return seconds(value);
}

// 75 -> "1:15"
export function clock(value) {
  if (!known(value)) return NOTHING;
  const whole = Math.round(value);
  const rest = String(whole % 60).padStart(2, '0');
  return `${Math.floor(whole / 60)}:${rest}`;
}

// plural(1, 'worker') -> "1 worker"
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}
