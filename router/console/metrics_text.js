// The Prometheus text format, as far as the console needs it. Pure.

// [{name, labels: {le: "0.5"}, value}] of a whole page. Lines that are not
// understood are left out.
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const sample = parseLine(line.trim());
    if (sample !== null) samples.push(sample);
  }
  return samples;
}

const NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*/;
const LABEL = /\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)/y;
const ESCAPES = {'\\n': '\n', '\\\\': '\\', '\\"': '"'};

function parseLine(line) {
  if (line === '' || line[0] === '#') return null;
  const name = NAME.exec(line);
  if (name === null) return null;
  let at = name[0].length;
  const labels = {};
  if (line[at] === '{') {
    at += 1;
    for (;;) {
      LABEL.lastIndex = at;
      const label = LABEL.exec(line);
      if (label === null) break;
      labels[label[1]] = label[2].replace(
          /\\[n"\\]/g, (escape) => ESCAPES[escape]);
      at = LABEL.lastIndex;
      if (label[3] === '') break;
    }
    const end = /\s*\}/y;
    end.lastIndex = at;
    if (!end.test(line)) return null;
    at = end.lastIndex;
  }
  const [word] = line.slice(at).trim().split(/\s+/);
  const value = parseNumber(word);
  return value === null ? null : {name: name[0], labels, value};
}

// A number, or null when `word` is none.
function parseNumber(word) {
  if (word === '+Inf' || word === 'Inf') return Infinity;
  if (word === '-Inf') return -Infinity;
  if (word === 'NaN') return NaN;
  if (word === '' || word === undefined) return null;
  const value = Number(word);
  return Number.isNaN(value) ? null : value;
}

// The sum over all series of that name; null when there is none.
export function sumOf(samples, name) {
  let sum = null;
  for (const sample of samples) {
    if (sample.name === name) sum = (sum ?? 0) + sample.value;
  }
  return sum;
}

// {bounds, cumulative} of a histogram, summed over its series: `bounds` rise
// and end in Infinity, cumulative[i] counts the values up to bounds[i]. Null
// when there is none.
export function histogramOf(samples, name) {
  const buckets = new Map();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket`) continue;
    const bound = parseNumber(sample.labels.le);
    if (bound === null || Number.isNaN(bound)) continue;
    buckets.set(bound, (buckets.get(bound) ?? 0) + sample.value);
  }
  if (!buckets.has(Infinity)) return null;
  const bounds = [...buckets.keys()].sort((a, b) => a - b);
  return {bounds, cumulative: bounds.map((bound) => buckets.get(bound))};
}
