// Sizes, counts and times in the terminal's format (src/analysis/words.rs).
"use strict";

function formatBytes(bytes) {
  if (bytes < 0) return "-" + formatBytes(-bytes);
  if (bytes < 1024) return bytes + " B";
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = bytes / 1024;
  let unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return value.toFixed(1).replace(/\.0$/, "") + " " + units[unit];
}

function formatCount(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

function plural(count, one, many) {
  return formatCount(count) + " " + (count === 1 ? one : many);
}

function withSign(number, format) {
  return (number < 0 ? "-" : "+") + format(Math.abs(number));
}

function formatBlocks(count) {
  return plural(count, "block", "blocks");
}

function formatDuration(ns) {
  const seconds = Math.floor(ns / 1e9);
  if (ns < 1e3) return ns + " ns";
  if (ns < 1e6) return Math.floor(ns / 1e3) + " us";
  if (ns < 1e9) return Math.floor(ns / 1e6) + " ms";
  if (ns < 60e9) {
    const tenth = Math.floor(ns / 1e8) % 10;
    return tenth === 0 ? seconds + " s" : seconds + "." + tenth + " s";
  }
  if (seconds < 3600) return Math.floor(seconds / 60) + " m " + (seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + (Math.floor(seconds / 60) % 60) + " m";
  return Math.floor(seconds / 86400) + " d " + (Math.floor(seconds / 3600) % 24) + " h";
}

function formatPart(part, whole) {
  if (whole === 0) return "0 %";
  const percent = (100 * part) / whole;
  return (percent >= 10 || percent === 0 ? percent.toFixed(0) : percent.toPrecision(2)) + " %";
}
