// The parameters of a request, from the form. Empty ones are left to the
// router, which takes the model's own.

import {byId} from './dom.js';

// Name in the API (and "parameter-NAME" in the page), whether it is whole.
const FIELDS = [
  {name: 'max_tokens', isWhole: true},
  {name: 'temperature', isWhole: false},
  {name: 'top_p', isWhole: false},
  {name: 'seed', isWhole: true},
];

// A value or what is wrong with it. `text` is what was typed. Ranges are the
// router's business. Pure.
export function readNumber(text, isWhole) {
  const trimmed = text.trim();
  if (trimmed === '') return {value: null};
  const value = Number(trimmed);
  if (!Number.isFinite(value)) return {problem: 'is not a number'};
  if (isWhole && !Number.isInteger(value)) {
    return {problem: 'must be a whole number'};
  }
  if (isWhole && !Number.isSafeInteger(value)) {
    return {problem: `must be at most ${Number.MAX_SAFE_INTEGER}`};
  }
  return {value};
}

function inputOf(name) {
  return document.getElementById(`parameter-${name}`);
}

// {values, problem}: the given ones by name, or {param, message} of the first
// that is wrong.
export function readParameters() {
  const values = {};
  for (const {name, isWhole} of FIELDS) {
    const {value, problem} = readNumber(inputOf(name).value, isWhole);
    if (problem !== undefined) {
      return {values, problem: {param: name, message: `${name} ${problem}.`}};
    }
    if (value !== null) values[name] = value;
  }
  return {values, problem: null};
}

// Marks the field that an error is about; null: none.
export function markParameter(param) {
  for (const {name} of FIELDS) {
    const isMarked = name === param;
    const input = inputOf(name);
    input.setAttribute('aria-invalid', String(isMarked));
    if (isMarked) {
      input.setAttribute('aria-describedby', 'error');
    } else {
      input.removeAttribute('aria-describedby');
    }
  }
}

// How long answers of a model may be.
export function offerContext(tokens) {
  if (!(tokens > 0)) return;
  byId('context-hint').textContent =
      `The context has ${tokens.toLocaleString('en')} tokens.`;
}
