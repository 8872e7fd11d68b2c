// Building blocks of the page: elements, sections, lists of facts, shortened names.
"use strict";

// The functions that show a page, by the name in the data. Each file adds its own.
const pages = {};

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

// A list of names and texts; an empty name continues the row above.
function facts(rows, classes) {
  return element("dl", { class: "facts " + (classes || "") }, rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

// Cuts a long name in the middle; the row's details have all of it.
function shorten(name) {
  return name.length <= 120 ? name : name.slice(0, 80) + "…" + name.slice(-39);
}

// Shows one of several items; a selection list appears if there is more than one.
function oneOf(host, label, names, show) {
  const place = element("div");
  const change = (number) => {
    place.replaceChildren();
    show(number, place);
  };
  if (names.length > 1) {
    const options = names.map((name, number) => element("option", { value: number }, name));
    const id = "choose-" + label.toLowerCase();
    host.append(element("p", {}, element("label", { for: id }, label), " ", element("select", { id, onchange: (event) => change(Number(event.target.value)) }, options)));
  }
  host.append(place);
  if (names.length > 0) change(0);
}

function exact(bytes) {
  return formatCount(bytes) + " bytes";
}

function numberCell(text, name, value) {
  return element("span", { ["data-" + name]: value, title: name === "bytes" ? exact(value) : null }, text);
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
