// Reads the page's data: base64 of deflate of a JSON header and columns of numbers.
"use strict";

async function readData(base64) {
  const compressed = bytesOf(base64);
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  return { header, columns: readColumns(bytes, 4 + length, header.columns) };
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Seven bits per byte, lowest first; the top bit is set if more bytes follow.
function readColumns(bytes, at, names) {
  const columns = {};
  for (const { name, count } of names) {
    const numbers = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      let byte = bytes[at++];
      let number = byte & 127;
      for (let scale = 128; byte > 127; scale *= 128) {
        byte = bytes[at++];
        number += (byte & 127) * scale;
      }
      numbers[i] = number;
    }
    columns[name] = numbers;
  }
  return columns;
}

// Stacks in sorted order, outermost frame first: `frames` from `starts[n]` to `starts[n + 1]`.
function readStacks(columns, prefix) {
  const shared = columns[prefix + ".shared"];
  const depth = columns[prefix + ".depth"];
  const added = columns[prefix + ".frames"];
  const starts = new Uint32Array(depth.length + 1);
  for (let n = 0; n < depth.length; n++) starts[n + 1] = starts[n] + depth[n];
  const frames = new Uint32Array(starts[depth.length]);
  let next = 0;
  for (let n = 0; n < depth.length; n++) {
    const start = starts[n];
    const alike = shared[n];
    if (alike > 0) frames.copyWithin(start, starts[n - 1], starts[n - 1] + alike);
    for (let i = start + alike; i < starts[n + 1]; i++) frames[i] = added[next++];
  }
  return { count: depth.length, starts, frames, truncated: columns[prefix + ".truncated"] };
}

// Access to frames by index.
class Frames {
  constructor(columns, strings) {
    this.columns = columns;
    this.strings = strings;
    this.count = columns["frames.name"].length;
  }
  text(column, frame) {
    return this.strings[this.columns["frames." + column][frame]];
  }
  name(frame) { return this.text("name", frame); }
  full(frame) { return this.text("full", frame); }
  place(frame) { return this.text("place", frame); }
  path(frame) { return this.text("path", frame); }
  module(frame) { return this.text("module", frame); }
  library(frame) { return this.text("library", frame); }
  group(frame) { return this.columns["frames.group"][frame]; }
  inlined(frame) { return this.columns["frames.inlined"][frame] === 1; }
  // For each frame the first one of the same function.
  get functions() {
    if (!this.firsts) {
      const known = new Map();
      const [full, group, path] = ["full", "group", "path"].map((name) => this.columns["frames." + name]);
      this.spread = new Set();
      this.firsts = Uint32Array.from(full, (name, frame) => {
        const key = name + " " + group[frame];
        if (!known.has(key)) known.set(key, frame);
        const first = known.get(key);
        if (path[first] !== path[frame]) this.spread.add(first);
        return first;
      });
    }
    return this.firsts;
  }
  // Whether the stacks have several lines of its function.
  hasLines(frame) {
    const first = this.functions[frame];
    return this.spread.has(first);
  }
  isUsers(frame) { return this.columns["frames.users"][frame] === 1; }

  // Marks the frames that contain this text in their name, place or module, ignoring case.
  matching(text) {
    if (!this.searched) {
      const lower = this.strings.map((string) => string.toLowerCase());
      const parts = ["full", "path", "module"].map((name) => this.columns["frames." + name]);
      this.searched = { lower, parts };
    }
    const { lower, parts } = this.searched;
    const wanted = text.toLowerCase();
    const hit = Uint8Array.from(lower, (string) => string.includes(wanted));
    const found = new Uint8Array(this.count);
    for (let frame = 0; frame < this.count; frame++) {
      found[frame] = parts.some((part) => hit[part[frame]]) ? 1 : 0;
    }
    return found;
  }
}
