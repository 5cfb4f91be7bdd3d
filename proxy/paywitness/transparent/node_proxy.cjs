// Makes Node's fetch use HTTPS_PROXY, HTTP_PROXY and NO_PROXY, if this version of Node cannot yet do so:
// NODE_OPTIONS=--require=/path/to/node_proxy.cjs. Later versions do it by themselves with NODE_USE_ENV_PROXY=1.
'use strict';

const http = require('node:http');
const tls = require('node:tls');

const CONNECT_MS = 10_000;
const GLOBAL_DISPATCHER = Symbol.for('undici.globalDispatcher.1');

function told(name) {
  return process.env[name.toLowerCase()] || process.env[name] || '';
}

function proxyFor(protocol) {
  const given = told(protocol === 'https:' ? 'HTTPS_PROXY' : 'HTTP_PROXY');
  return given ? new URL(given.includes('://') ? given : `http://${given}`) : null;
}

// A name matches itself and every name below it. A port limits it to that port. * matches everything.
function isSpared({ hostname, port, protocol }) {
  const host = hostname.replace(/^\[|\]$/g, '').toLowerCase();
  const at = port || (protocol === 'https:' ? '443' : '80');
  return told('NO_PROXY').toLowerCase().split(/[\s,]+/).filter(Boolean).some((entry) => {
    if (entry === '*') return true;
    const bare = entry.replace(/^\[|\]$/g, '');
    if (bare.split(':').length > 2) return host === bare; // an IPv6 address
    const [name, only] = bare.replace(/^\*?\./, '').split(':');
    return (!only || only === at) && (host === name || host.endsWith(`.${name}`));
  });
}

// A TLS connection to the origin through the proxy, in the form of an undici connector.
function connectThrough(proxy) {
  return ({ hostname, port, servername }, done) => {
    const authority = `${hostname}:${port || 443}`;
    const asking = http.request({
      host: proxy.hostname.replace(/^\[|\]$/g, ''),
      port: proxy.port || 80,
      method: 'CONNECT',
      path: authority,
      headers: { Host: authority },
      agent: false,
      timeout: CONNECT_MS,
    });
    asking.once('timeout', () => asking.destroy(new Error('the proxy did not answer in time')));
    asking.once('error', done);
    asking.once('response', (answer) => {
      answer.resume();
      done(new Error(`the proxy refused ${authority}: ${answer.statusCode}`));
    });
    asking.once('connect', (answer, socket) => {
      asking.removeListener('error', done);
      socket.setTimeout(0);
      if (answer.statusCode !== 200) {
        socket.destroy();
        done(new Error(`the proxy refused ${authority}: ${answer.statusCode}`));
        return;
      }
      const secured = tls.connect({ socket, servername: servername || hostname, ALPNProtocols: ['http/1.1'] });
      secured.once('error', done);
      secured.once('secureConnect', () => {
        secured.removeListener('error', done);
        done(null, secured);
      });
    });
    asking.end();
  };
}

function withHost(headers, host) {
  return Array.isArray(headers) ? [...headers, 'host', host] : { ...headers, host };
}

function install() {
  void globalThis.Response; // the first access loads undici, which makes its dispatcher
  const direct = globalThis[GLOBAL_DISPATCHER];
  const secureProxy = proxyFor('https:');
  const plainProxy = proxyFor('http:');
  if (!direct || !(secureProxy || plainProxy)) return;
  const Agent = direct.constructor;
  const tunnelled = secureProxy && new Agent({ connect: connectThrough(secureProxy) });

  class ByEnvironment extends Agent {
    dispatch(options, handler) {
      const origin = new URL(options.origin);
      const secure = origin.protocol === 'https:';
      if (isSpared(origin) || !(secure ? secureProxy : plainProxy)) return direct.dispatch(options, handler);
      if (secure) return tunnelled.dispatch(options, handler);
      const whole = { ...options, origin: plainProxy.origin, path: origin.origin + options.path };
      return direct.dispatch({ ...whole, headers: withHost(options.headers, origin.host) }, handler);
    }
  }
  globalThis[GLOBAL_DISPATCHER] = new ByEnvironment();
}

const byItself = Number(process.versions.node.split('.')[0]) >= 24
  || process.allowedNodeEnvironmentFlags.has('--use-env-proxy');
if (!byItself && typeof fetch === 'function') {
  const own = globalThis.fetch;
  let installed = false; // on the first call only: most processes make none, and undici takes time to load
  globalThis.fetch = function fetch(...given) {
    if (!installed) {
      installed = true;
      install();
    }
    return own(...given);
  };
}
