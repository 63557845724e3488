// Fills in what Hugging Face's tokenizers answers for each case of
// variants.json. A case is a base tokenizer, a patch of its tokenizer.json
// ("model" is merged, other fields are replaced), texts to encode and ids to
// decode.
//
// The answers in the repository are those of tokenizers 0.22.2:
//   npm install @anush008/tokenizers@0.6.0 && node make_variants.js
'use strict';
const fs = require('fs');
const path = require('path');
const {Tokenizer} = require('@anush008/tokenizers');

function patched(base, patch) {
  const file = path.join(__dirname, base, 'tokenizer.json');
  const json = JSON.parse(fs.readFileSync(file, 'utf8'));
  for (const [field, value] of Object.entries(patch)) {
    if (field === 'model') {
      Object.assign(json.model, value);
    } else {
      json[field] = value;
    }
  }
  return JSON.stringify(json);
}

async function main() {
  const file = path.join(__dirname, 'variants.json');
  const cases = JSON.parse(fs.readFileSync(file, 'utf8'));
  for (const one of cases) {
    const tokenizer = Tokenizer.fromString(patched(one.base, one.patch));
    for (const entry of one.encode) {
      const encoding = await tokenizer.encode(
          entry.text, null, {addSpecialTokens: entry.add_special_tokens});
      entry.ids = encoding.getIds();
    }
    for (const entry of one.decode) {
      entry.text = await tokenizer.decode(entry.ids, entry.skip_special_tokens);
    }
  }
  // One case a line, in ASCII, so that differences can be read.
  const ascii = (text) => text.replace(/[\u007f-\uffff]/g, (c) =>
      '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
  fs.writeFileSync(
      file, '[\n' + cases.map((c) => ascii(JSON.stringify(c))).join(',\n') +
          '\n]\n');
}

main();
