// Opens what culeak exports in the code of PyTorch's page (https://pytorch.org/memory_viz), with what draws replaced by nothing, and compares
// its numbers with culeak's. Called by run.sh: node memory_viz.mjs CULEAK VIZ, where VIZ is the folder torch/utils/viz of PyTorch's
// sources (its packages do not have it). Releases before 2.10 do not show the pools.

import assert from 'node:assert';
import {execFileSync} from 'node:child_process';
import {mkdtempSync, readFileSync, readdirSync, rmSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {dirname, join, resolve} from 'node:path';
import {fileURLToPath} from 'node:url';

const [culeak, viz] = process.argv.slice(2).map(path => resolve(path));
const here = dirname(fileURLToPath(import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'culeak-memory-viz-'));
const MIB = 1 << 20;

// The page is one module: without its imports and exports, and behind what it imports, it is a function's body. In older releases of
// PyTorch, the page has all functions itself.
function page() {
  const script = name => readFileSync(join(viz, name), 'utf8');
  const names = readdirSync(viz).filter(name => name === 'process_alloc_data.js');
  const text = [...names, 'MemoryViz.js'].map(script).join('\n');
  const plain = text.replace(/^import [^;]*;/gm, '').replace(/^export (\{[^}]*\};)?/gm, '');
  // Each of its properties, elements and results is itself; as a number it is 1.
  const nothing = new Proxy(function () {}, {
    get: (_, name) => (name === Symbol.toPrimitive ? () => 1 : name === Symbol.iterator ? undefined : nothing),
    set: () => true,
    apply: () => nothing,
    construct: () => nothing,
  });
  const drawing = ['d3', 'axisLeft', 'scaleLinear', 'zoom', 'zoomIdentity', 'brushX', 'document', 'window', 'console'];
  const wanted = '{unpickle_and_annotate, process_alloc_data, MemoryView}';
  const has_pools = plain.includes('`pool:');
  return {has_pools, ...new Function(...drawing, `${plain}\nreturn ${wanted};`)(...drawing.map(() => nothing))};
}

const {has_pools, unpickle_and_annotate, process_alloc_data, MemoryView} = page();

function run(...words) {
  return execFileSync(culeak, words, {encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore']});
}

function opened(input) {
  const path = join(folder, 'written.pickle');
  run('export', input, '--format', 'memory_viz', '-o', path, '--force');
  const bytes = readFileSync(path);
  return unpickle_and_annotate(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
}

const sum = (list, of) => list.reduce((total, each) => total + Number(of(each)), 0);
const max = list => list.reduce((most, each) => Math.max(most, Number(each)), 0);

// What the page shows of a device: every view is made, and the history at every event.
function shown(snapshot, device = 0) {
  const timeline = process_alloc_data(snapshot, device, false, 15000);
  process_alloc_data(snapshot, device, true, 15000);
  const with_pools = process_alloc_data(snapshot, device, false, 15000, true);
  for (let id = 0; id < timeline.elements_length; id++) timeline.context_for_id(id);
  const nothing = () => {};
  const view = MemoryView(new Proxy(nothing, {get: () => function () { return chain; }}), {register: nothing}, snapshot, device);
  const events = snapshot.device_traces[device];
  const states = events.map((_, index) => view.draw(index).map(Number));
  const envelopes = with_pools.allocations_over_time.filter(band => String(band.elem).startsWith('pool:'));
  return {
    blocks: timeline.elements_length,
    peak: max(timeline.max_at_time),
    held: states.at(-1),
    envelopes: envelopes.map(band => [band.elem, max(band.size)]),
  };
}
const chain = new Proxy(function () {}, {get: (_, name) => (name === Symbol.toPrimitive ? () => 1 : chain), apply: () => chain});

// A program with a log: 25 blocks, 30 MiB at most, two of the blocks in a pool that it made.
run('run', '--timeline', '-o', `${folder}/`, '--', 'python3', join(here, 'pools.py'));
const [recording] = readdirSync(folder).filter(name => name.endsWith('.culeak')).map(name => join(folder, name));
const report = JSON.parse(run('report', recording, '--json'));
const logged = shown(opened(recording));
const [gpu] = report.devices;
assert.equal(logged.blocks, report.totals.allocated - report.totals.claims.pool);
assert.deepEqual([logged.blocks, logged.peak, gpu.peak_bytes], [25, 30 * MIB, 30 * MIB]);
assert.deepEqual(logged.held, [11 * MIB, report.totals.held.device.bytes]);
if (has_pools) {
  const [[pool, bytes], ...others] = logged.envelopes;
  assert.match(pool, /^pool:\d+,\d+,s/);
  // The page knows the pools of memory that is there at the end.
  assert.deepEqual([bytes, others], [5 * MIB, []]);
}

// A snapshot of PyTorch with a private pool, and a block that is older than its history, read and written again.
const again = shown(opened(join(here, '../data/memory_viz/cuda.pickle')));
assert.deepEqual([again.blocks, again.peak], [3, 10 * MIB - 100]);
assert.deepEqual(again.held, [28 * MIB, 10 * MIB - 300]);
if (has_pools) {
  assert.equal(again.envelopes.length, 1);
  assert.equal(again.envelopes[0][1], 8 * MIB);
  assert.match(again.envelopes[0][0], /^pool:0,7,/);
}

rmSync(folder, {recursive: true});
console.log(`ok      PyTorch's page shows what is written for it${has_pools ? ', with the envelopes of pools' : '; this release has no envelopes of pools'}`);
