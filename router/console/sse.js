// Server-sent events out of a stream of bytes. Pure; knows no network.
//
// Bytes may be cut anywhere: within a character, within "\r\n", within a field.
// As the HTML standard has it (9.2.6, "Interpreting an event stream"), lines
// end in "\n", "\r\n" or "\r", an empty line ends an event, and what is left
// when the stream ends is no event.
export class SseParser {
  // More than this without the end of a line is not an event stream.
  static MAX_LINE_CHARACTERS = 16 << 20;

  #decoder = new TextDecoder('utf-8');
  #rest = '';
  #skipLineFeed = false;
  #data = [];

  // The data of the events that `bytes` (a Uint8Array) completes.
  push(bytes) {
    const events = [];
    let text = this.#decoder.decode(bytes, {stream: true});
    if (this.#skipLineFeed && text !== '') {
      if (text[0] === '\n') text = text.slice(1);
      this.#skipLineFeed = false;
    }
    let begin = 0;
    for (let end = 0; end < text.length; end += 1) {
      if (text[end] !== '\n' && text[end] !== '\r') continue;
      this.#line(this.#rest + text.slice(begin, end), events);
      this.#rest = '';
      if (text[end] === '\r') {
        if (end + 1 === text.length) this.#skipLineFeed = true;
        if (text[end + 1] === '\n') end += 1;
      }
      begin = end + 1;
    }
    this.#rest += text.slice(begin);
    if (this.#rest.length > SseParser.MAX_LINE_CHARACTERS) {
      throw new Error('the answer is no event stream: a line has no end');
    }
    return events;
  }

  #line(line, events) {
    if (line === '') {
      if (this.#data.length > 0) events.push(this.#data.join('\n'));
      this.#data = [];
      return;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field !== 'data') return;  // comments, and fields that we do not use
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value[0] === ' ') value = value.slice(1);
    this.#data.push(value);
  }
}
