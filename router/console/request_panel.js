// The figures of one request, live.

import {drawSpark} from './chart.js';
import {byId, setText} from './dom.js';
import {count, NOTHING, rate, seconds} from './format.js';

// The last so many gaps between tokens are drawn.
const MAX_GAPS = 120;

const ENDS = {
  stop: 'The model ended it',
  length: 'Reached its limit of tokens',
};

export class RequestPanel {
  #meter = null;
  #frame = null;
  #isWaiting = false;

  // A new request, whose figures `meter` has.
  begin(meter) {
    this.#meter = meter;
    this.#isWaiting = true;
    setText(byId('request-prompt-tokens'), NOTHING);
    setText(byId('request-end'), 'Waiting for the first token');
    byId('request-id-row').hidden = true;
    this.#draw();
  }

  requestId(id) {
    if (id === null || id === '') return;
    setText(byId('request-id'), id);
    byId('request-id-row').hidden = false;
  }

  // The figures changed.
  update() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  usage(usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    setText(byId('request-prompt-tokens'),
            count(usage.prompt_tokens) +
                (cached > 0 ? ` (${count(cached)} cached)` : ''));
  }

  // How it ended: a finish reason of the API, or words of our own.
  end(reason) {
    this.#isWaiting = false;
    setText(byId('request-end'), ENDS[reason] ?? reason);
    this.#draw();
  }

  #draw() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    const meter = this.#meter;
    const about = meter.isExact || meter.tokens === 0 ? '' : '≈ ';
    const speed = meter.tokensPerSecond;
    setText(byId('request-ttft'), seconds(meter.ttft));
    setText(byId('request-rate'),
            speed === null ? NOTHING : about + rate(speed));
    setText(byId('request-tokens'),
            meter.ttft === null && !meter.isExact ?
                NOTHING : about + count(meter.tokens));
    const gaps = meter.gaps.slice(-MAX_GAPS);
    drawSpark(byId('gaps'), byId('gaps-line'), gaps);
    const longest = gaps.reduce((a, b) => Math.max(a, b), 0);
    setText(byId('gaps-note'),
            gaps.length === 0 ? NOTHING : `longest ${seconds(longest)}`);
    if (this.#isWaiting && meter.ttft !== null) {
      this.#isWaiting = false;
      setText(byId('request-end'), 'Streaming');
    }
  }
}
