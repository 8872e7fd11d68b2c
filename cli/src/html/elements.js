// Building blocks of the page: elements, sections, shortened names.
"use strict";

const main = document.getElementById("main");

// Creates an element with attributes and children. Strings become text, never markup.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick" || name === "onchange" || name === "oninput") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

function section(host, title, ...content) {
  const heading = element("h2", {}, title);
  host.append(heading, ...content.flat());
  return heading;
}

// Cuts a long name in the middle; the row's details have all of it.
function shorten(name) {
  return name.length <= 120 ? name : name.slice(0, 80) + "…" + name.slice(-39);
}

// The current value of a colour variable of the style sheet.
function colourOf(variable) {
  const probe = element("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
