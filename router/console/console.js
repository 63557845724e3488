// The console: what it is made of, and how its parts hear of each other.

import {Api, ApiError, KeyStore} from './api.js';
import {ClusterView} from './cluster.js';
import {clusterState} from './cluster_state.js';
import {byId, setAttributes, setText} from './dom.js';
import {KeyDialog} from './key_dialog.js';
import {Playground} from './playground.js';
import {Poller} from './poller.js';

const POLL_MS = 1000;
const MODELS_TIMEOUT_MS = 5000;
const VIEWS = ['playground', 'cluster'];

// {level, label, detail} of a router that gave no report.
function stateOfError(error) {
  if (error.status === 401) {
    return {
      level: 'locked',
      label: 'Key needed',
      detail: 'The router wants an API key.',
    };
  }
  if (error.status === 0) {
    return {
      level: 'unreachable',
      label: 'Unreachable',
      detail: `${error.message} Trying again every second.`,
    };
  }
  return {level: 'unreachable', label: 'Error', detail: error.message};
}

// The names of all workers' adapters, to be compared.
function adaptersOf(cluster) {
  const names = new Set(cluster.workers.flatMap((worker) => worker.adapters));
  return JSON.stringify([...names].sort());
}

class Console {
  #keys = new KeyStore();
  #api = new Api(this.#keys, (hadKey) => this.#refused(hadKey));
  #dialog = new KeyDialog(this.#keys, () => this.#keyChanged());
  #playground = new Playground(this.#api);
  #cluster = new ClusterView();
  #poller = new Poller(this.#api, POLL_MS, (report) => this.#report(report));
  #hasModel = false;
  // Of all workers, when the models were asked for: with others there are other
  // models.
  #adapters = '';
  #isLoadingModel = false;
  // The router refused the key, or wants one, and none was given since.
  #isLocked = false;

  start() {
    addEventListener('hashchange', () => this.#showView());
    this.#showView();
    if (/Mac|iPhone|iPad/.test(navigator.userAgent)) {
      setText(byId('send-modifier'), '⌘');
    }
    this.#playground.setModels([]);
    this.#poller.start();
  }

  #showView() {
    const name = location.hash.slice(1);
    const shown = VIEWS.includes(name) ? name : null;
    // A link to something within the page, such as #main, changes no view.
    if (shown === null && name !== '') return;
    for (const view of VIEWS) {
      const isShown = view === (shown ?? VIEWS[0]);
      byId(view).hidden = !isShown;
      setAttributes(byId(`to-${view}`),
                    {'aria-current': isShown ? 'page' : 'false'});
    }
  }

  #report(report) {
    if (this.#isLocked && report.error === null) return;
    const state = report.error === null ? clusterState(report.cluster) :
                                          stateOfError(report.error);
    this.#showState(state);
    this.#cluster.update(report);
    if (report.error !== null) {
      // It may come back with another model.
      this.#hasModel = false;
      return;
    }
    const adapters = adaptersOf(report.cluster);
    if (!this.#hasModel || adapters !== this.#adapters) {
      this.#loadModels(adapters);
    }
  }

  #showState({level, label, detail}) {
    setAttributes(byId('state'), {class: `state ${level}`});
    setText(byId('state-label'), label);
    setText(byId('banner-text'), detail);
    setAttributes(byId('banner'), {class: `banner ${level}`});
    byId('banner').hidden = detail === '';
  }

  async #loadModels(adapters) {
    if (this.#isLoadingModel) return;
    this.#isLoadingModel = true;
    try {
      const models =
          await this.#api.json('/v1/models', {timeoutMs: MODELS_TIMEOUT_MS});
      this.#showModels(Array.isArray(models?.data) ? models.data : []);
      this.#hasModel = true;
      this.#adapters = adapters;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // The next report tries again.
    } finally {
      this.#isLoadingModel = false;
    }
  }

  // The first of them is the model itself, unless the key has only adapters.
  #showModels(entries) {
    const models = entries.filter((entry) => typeof entry?.id === 'string')
                       .map((entry) => ({
                              id: entry.id,
                              hasChat: entry.chat === true,
                              maxModelLen: Number(entry.max_model_len),
                            }));
    setText(byId('model'), models[0]?.id ?? 'no model');
    if (models.length > 0) document.title = `${models[0].id} – Baton`;
    this.#playground.setModels(models);
  }

  #refused(hadKey) {
    this.#isLocked = true;
    this.#poller.stop();
    this.#showState(stateOfError(new ApiError(401, '')));
    if (!this.#dialog.isOpen) {
      this.#dialog.open(
          hadKey ? 'The router did not accept this key.' : '');
    }
  }

  #keyChanged() {
    this.#isLocked = false;
    this.#hasModel = false;
    this.#poller.start();
  }
}

new Console().start();
