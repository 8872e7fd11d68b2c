// What all parts of the page are made of: elements, sections, lists of facts, names that fit.
"use strict";

// What the page can show, by the name in the data: each file that can show something adds itself.
const pages = {};

const main = document.getElementById("main");

// An element with attributes and children; text is always text.
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

// Rows with a name and a text; an empty name continues the row above.
function facts(rows, classes) {
  return element("dl", { class: "facts " + (classes || "") }, rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

// A long name keeps its beginning and its end; all of it stands in the row's detail.
function shorten(name) {
  return name.length <= 120 ? name : name.slice(0, 80) + "…" + name.slice(-39);
}

// One of several things, chosen from a list when there are more than one.
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
