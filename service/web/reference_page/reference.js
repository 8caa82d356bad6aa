// Renders openapi.json: the operations, their links, and a form that sends each of them. Searches the whole page.
// Text becomes text nodes, never markup.
"use strict";

const { entries, keys, values } = Object;
const byId = (id) => document.getElementById(id);
const findAll = (selector) => [...document.querySelectorAll(selector)];
const MAX_SHOWN = 100_000; // characters of a response: a stream can have gigabytes
let spec;

// Makes an element, for example `p.note`; attributes that start with "on" are event handlers.
function make(kind, attributes = {}, ...children) {
  const [tag, className] = kind.split(".");
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(Boolean));
  return element;
}

function resolve(thing) {
  if (!thing?.$ref) return thing;
  return thing.$ref.slice(2).split("/").reduce((found, key) => found[key], spec);
}

// Empty lines separate paragraphs; code is in backticks.
function renderParagraphs(text) {
  return text.split("\n\n").map((paragraph) => make("p", {}, renderCode(paragraph)));
}

function renderCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

// JSON with a span for the colour of each value; in the response to a form, some values are links.
function highlightJson(text, form) {
  const parts = text.split(/("(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/);
  let name;
  return parts.map((part, index) => {
    if (index % 2 === 0) return part;
    const kind = !part.startsWith('"') ? "literal" : /^\s*:/.test(parts[index + 1]) ? "key" : "string";
    if (kind === "key") name = part.slice(1, -1);
    return make(`span.${kind}`, {}, (form && kind === "string" && linkValue(name, part, form)) || part);
  });
}

function linkValue(name, text, form) {
  const value = text.replaceAll('"', "");
  const [, slug] = value.split("/v1/docs#");
  if (name === "type" && slug) return make("a", { href: `#${slug}` }, text);
  const field = name.endsWith("_cursor") && (form.elements.after ?? form.elements.cursor);
  return field && linkToForm(text, field.dataset.operation, { [field.name]: value });
}

// A link that fills these fields of a form.
function linkToForm(text, operation, fields) {
  return make("a", { href: `#${operation}`, onclick: () => {
    for (const [name, value] of entries(fields)) setValue(byId(`${operation}-parameter-${name}`), value);
  } }, text);
}

// Links for the URLs of Location and Link, and the cursor of a list for the feed.
function linkHeader(name, text) {
  if (name === "changes-cursor") return linkToForm(text, "list_changes", { after: text });
  return text.split(/(\/v1\/movies[^>\s]*)/).map((part, index) => {
    if (index % 2 === 0) return part;
    const [path, query] = part.split("?");
    const id = path.split("/")[3];
    return id ? linkToForm(part, "show_movie", { id }) : linkToForm(part, "list_movies", Object.fromEntries(new URLSearchParams(query)));
  });
}

function makeCodeBlock(label, ...children) {
  return make("pre", { tabindex: "0", role: "group", "aria-label": label }, make("code", {}, children));
}

// The type of a schema: "string", "array of string", "integer".
function describeType(schema) {
  if (schema.type === "array") return `array of ${describeType(schema.items)}`;
  return [schema.type].flat().join(" or ");
}

// The description has the limits of the value; patterns are for programs.
function renderField(name, schema, required) {
  return make("div.field", {},
    make("dt", {}, make("code", {}, name), " ", make("span.type", {}, describeType(schema)), required && make("span.required", {}, " required")), " ",
    make("dd", {}, renderCode(schema.description ?? ""), schema.enum && `: ${schema.enum.join(", ")}`), " ");
}

// The fields of an object; nested fields are shown by their path.
function renderFields(schema, prefix = "") {
  return entries(schema.properties).flatMap(([name, reference]) => {
    const field = resolve(reference);
    const inner = resolve(field.items) ?? field;
    if (inner.properties) return renderFields(inner, `${prefix}${name}${field.items ? "[]" : ""}.`);
    return renderField(prefix + name, field, schema.required?.includes(name));
  });
}

function makeStatusBadge(status) {
  return make("span", { class: `status s${String(status)[0]}` }, String(status));
}

function makeMethodBadge(method) {
  return make("span", { class: `method ${method}` }, method.toUpperCase());
}

// One line per status; problems link to their sections. Headers that all have are left out.
function renderResponse(status, response) {
  const problems = entries(response.content?.["application/problem+json"]?.examples ?? {});
  const links = problems.flatMap(([slug, example], index) =>
    [index && ", ", make("a", { href: `#${slug}` }, resolve(example).summary)]);
  const headers = keys(response.headers).filter((name) => !["Cache-Control", "X-Request-Id"].includes(name));
  return make("li", {}, makeStatusBadge(status), " ",
    make("span", {}, links.length ? links : renderCode(response.description),
      make("span.with", {}, headers.length > 0 && ` with ${headers.join(", ")}`)), " ");
}

// The token as a row of the form; its field is above all forms.
function describeToken({ scope, needsToken }) {
  return renderField("Authorization", { type: "header", description: `\`Bearer\` and a token with the scope \`${scope}\`: Token above.` +
    (needsToken ? "" : " This service also allows it without a token.") }, needsToken);
}

function readToken({ scope }) {
  return scope ? byId("token").value.trim() : "";
}

// The token is only in its field; nothing stores it.
function setUpToken() {
  const input = byId("token");
  input.closest("div").parentElement.hidden = false;
  input.oninput = () => findAll("form").forEach((form) => form.oninput()); // the samples depend on it
  addEventListener("pagehide", () => { input.value = ""; }); // or going back would show this page with it
}

function makeParameter(operation, parameter) {
  const { name, description, schema, required } = parameter;
  const id = `${operation}-parameter-${name}`;
  const shared = { id, name, "data-in": parameter.in, "data-operation": operation, required, "aria-describedby": `${id}-note` };
  const example = schema.examples?.[0];
  const input = schema.enum
    ? make("select", shared, (required || schema.enum.includes("") ? schema.enum : ["", ...schema.enum]).map((each) => make("option", {}, each)))
    : make("input", { ...shared, value: required && example, placeholder: example && String(example), autocomplete: "off" });
  return make("div.control", {},
    make("label", { for: id }, make("code", {}, name), make("span.type", {}, ` ${describeType(schema)}, ${parameter.in}`),
      required && make("span.required", {}, " required")),
    input, make("div.note", { id: `${id}-note` }, renderCode(description ?? "")));
}

// The request that the form describes: URL, method, headers and body.
function readForm(form, { path, method }) {
  const query = new URLSearchParams();
  const headers = {};
  let url = path;
  for (const input of form.querySelectorAll("[data-in]")) {
    const value = input.value.trim();
    if (input.dataset.in === "path") url = url.replace(`{${input.name}}`, encodeURIComponent(value));
    else if (value && input.dataset.in === "query") query.append(input.name, value);
    else if (value) headers[input.name] = value;
  }
  const body = form.elements.body?.value;
  return { url: new URL(url + (query.size ? `?${query}` : ""), location.href).href, method: method.toUpperCase(), headers, body };
}

function quoteForShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// The samples have a variable in place of the token, to keep it off the screen and the shell's history.
const SAMPLES = { curl: formatCurl, Python: (...request) => formatCode(...request, true), JavaScript: formatCode };

function formatCurl({ url, method, headers, body }, hasToken) {
  return ["curl -i", hasToken && '-H "Authorization: Bearer $TOKEN"',
    method !== "GET" && !(method === "POST" && body) && `-X ${method}`,
    ...entries(headers).map(([name, value]) => `-H ${quoteForShell(`${name}: ${value}`)}`),
    body !== undefined && `-d ${quoteForShell(body)}`, quoteForShell(url)].filter(Boolean).join(" \\\n  ");
}

// A string of Python or JavaScript, on one line.
function quote(text) {
  return `'${text.replace(/[\\']/g, "\\$&").replace(/\n\s*/g, " ")}'`;
}

function formatCode({ url, method, headers, body }, hasToken, isPython) {
  const fields = entries(headers).map(([name, value]) => `${quote(name)}: ${quote(value)}`);
  if (hasToken) fields.push(`'Authorization': ${isPython ? `f"Bearer {os.environ['TOKEN']}"` : "`Bearer ${process.env.TOKEN}`"}`);
  const list = fields.length && `{\n        ${fields.join(",\n        ")},\n    },`;
  const lines = isPython
    ? [hasToken && "import os", "import requests\n", `response = requests.request(\n    ${quote(method)},\n    ${quote(url)},`,
      list && `    headers=${list}`, body && `    data=${quote(body)}.encode(),`,
      "    timeout=10,\n)\nprint(response.status_code, response.text)"]
    : [`const response = await fetch(${quote(url)}, {\n    method: ${quote(method)},`,
      list && `    headers: ${list}`, body && `    body: ${quote(body)},`,
      "});\nconsole.log(response.status, await response.text());"];
  return lines.filter(Boolean).join("\n");
}

// Screen readers announce the first child of `output`, the status.
async function send(form, operation, { firstElementChild: status, lastElementChild: content }) {
  const request = readForm(form, operation);
  const token = readToken(operation);
  content.replaceChildren();
  status.replaceChildren(make("p.waiting", {}, "Sending…"));
  try {
    const headers = token ? { ...request.headers, Authorization: `Bearer ${token}` } : request.headers;
    const response = await fetch(request.url, { ...request, headers, cache: "no-store" });
    const text = await readStart(response);
    const isJSON = /[/+]json\b/.test(response.headers.get("Content-Type"));
    status.replaceChildren(make("p.outcome", {}, makeStatusBadge(response.status), " ",
      make("strong", {}, response.statusText)));
    content.replaceChildren(
      ...(text ? [make("h5", {}, "Body"), makeCodeBlock("Response body", isJSON ? highlightJson(text, form) : text)] : []),
      make("h5", {}, "Headers"),
      makeCodeBlock("Response headers", [...response.headers].map(([name, value]) => [`${name}: `, linkHeader(name, value), "\n"])),
    );
    const [, id] = response.headers.get("Location")?.split("/v1/movies/") ?? [];
    if (id) findAll("input[name=id][required]").forEach((input) => setValue(input, id)); // of the other forms
    byId("token-problem").replaceChildren();
    if (response.status === 401) return askForToken(form);
  } catch (error) {
    status.replaceChildren(make("p.failed", {}, `No response: ${error.message}`));
  }
  const { top, bottom } = status.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight / 2) status.scrollIntoView();
}

async function readStart({ body }) {
  const reader = body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part; reader && text.length < MAX_SHOWN && !(part = await reader.read()).done;) text += part.value;
  reader?.cancel();
  return text.length < MAX_SHOWN ? text : `${text}\n… (only the start is shown)`;
}

// After a 401: leads to the field for the token, and back.
function askForToken(form) {
  const back = make("button", { type: "button", onclick: () => form.querySelector(".send").focus() }, "Back to the request");
  byId("token-problem").replaceChildren(make("p.failed", {}, "401: the request needs a valid token."), back);
  byId("token").focus();
}

function setValue(input, value) {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

function makeBodyControls(name, { content, required }) {
  const { schema, example } = values(content)[0];
  const text = JSON.stringify(example, null, 2);
  return [make("div.control", {}, make("label", { for: `${name}-body` }, "Body", required && make("span.required", {}, " required")),
    make("textarea", { id: `${name}-body`, name: "body", rows: text.split("\n").length, spellcheck: "false" }, text)),
  make("dl.fields", {}, renderFields(resolve(schema)))];
}

// Fills the template: the form, and beside it the sample and the response; before one was sent, its example.
function renderOperation(operation) {
  const { operationId: name, summary, path, method, description, parameters, requestBody, responses, scope, needsToken } = operation;
  const article = byId("operation").content.firstElementChild.cloneNode(true);
  const find = (selector) => article.querySelector(selector);
  article.id = name;
  article.ariaLabel = summary;
  find(".title").append(summary);
  find(".anchor").href = `#${name}`;
  find(".route").append(makeMethodBadge(method), " ", make("code", {}, path));
  const [first, ...rest] = renderParagraphs(description);
  find(".description").append(first);
  find(".more").prepend(...rest);

  const form = find("form");
  const sample = find(".sample");
  const language = find(".language");
  const refresh = () => {
    sample.textContent = SAMPLES[language.value](readForm(form, operation), needsToken || readToken(operation));
  };
  sample.id = `${name}-sample`;
  language.oninput = refresh;
  language.onchange = () => {
    for (const other of findAll(".language")) setValue(other, language.value);
  };
  find(".copy").hidden = !navigator.clipboard;
  find(".copy").onclick = () => navigator.clipboard.writeText(sample.textContent);
  find(".send").append(` ${method.toUpperCase()}`);
  form.append(...[requestBody && makeBodyControls(name, requestBody), scope && make("dl.fields", {}, describeToken(operation)),
    parameters.map((parameter) => makeParameter(name, parameter))].flat().filter(Boolean));
  form.ariaLabel = `Try ${method} ${path}`;
  form.oninput = refresh;
  form.onsubmit = (event) => {
    event.preventDefault();
    send(form, operation, find(".output"));
  };
  form.onkeydown = ({ key, ctrlKey, metaKey }) => { if (key === "Enter" && (ctrlKey || metaKey)) form.requestSubmit(); };
  refresh();

  find(".responses").append(...entries(responses).map(([status, response]) => renderResponse(status, resolve(response))));
  for (const [status, { content }] of entries(responses)) {
    if (!status.startsWith("2")) continue;
    const [[kind, { schema, example }]] = entries(content);
    const fields = resolve(schema);
    if (fields.properties) find(".more").append(make("details", {}, make("summary", {}, `Fields of the ${status} response`), make("dl.fields", {}, renderFields(fields))));
    if (example) find(".output").lastElementChild.append(make("h5", {}, `Example of ${status}, ${kind}`), makeCodeBlock(`Example of ${status}`, highlightJson(JSON.stringify(example, null, 2))));
  }
  return article;
}

// Adds what the functions above need; `scope` is undefined if the operation ignores tokens.
function describeOperation(path, method, operation) {
  const { requestBody, responses, security: [way, alternative] } = operation;
  const parameters = operation.parameters.map(resolve);
  const choose = (name, ...options) => parameters.push({ name, in: "header", schema: { type: "string", enum: options } });
  const streams = responses[200]?.["x-streams"];
  if (streams) choose("Accept", "", "application/json", ...streams);
  if (requestBody) choose("Content-Type", ...keys(requestBody.content), "");
  return { ...operation, path, method, parameters, scope: way?.token[0], needsToken: way && !alternative };
}

function render() {
  byId("version").textContent = `v${spec.info.version}`;
  byId("base").textContent = location.href.split("/docs")[0];
  for (const code of findAll(".document pre code")) code.textContent = code.textContent.replaceAll("http://127.0.0.1:8000", location.origin);
  setUpToken();
  const operations = entries(spec.paths).flatMap(([path, item]) =>
    entries(item).map(([method, operation]) => describeOperation(path, method, operation)));
  const sorted = spec.tags.flatMap(({ name }) => operations.filter(({ tags }) => tags.includes(name)));
  byId("operation-links").append(...sorted.map(({ operationId, method, summary }) =>
    make("li", {}, make("a", { href: `#${operationId}` }, makeMethodBadge(method), make("span", {}, summary)))));
  byId("operations").append(...sorted.map(renderOperation));
}

// Marks the link of the last section that begins in the upper part of the window, or above it.
function markCurrentLink() {
  const links = findAll("#sections li a");
  const mark = () => {
    const current = links.findLast(({ hash }) => byId(hash.slice(1)).getBoundingClientRect().top < innerHeight * 0.3);
    for (const link of links) link.ariaCurrent = link === current;
  };
  for (const event of ["scroll", "resize", "hashchange"]) addEventListener(event, mark);
  mark();
}

// Finds the parts of the page that have all words: sections of documents and operations. Those with more of
// the words in their titles come first; Enter follows the first link.
function setUpSearch() {
  const search = byId("search");
  const parts = findAll(".document :is(h2, h3, h4), article").map((part) => {
    const title = (part.querySelector("header, h3") ?? part).textContent;
    let text = part.textContent;
    for (let next = part; part.tagName !== "ARTICLE" && (next = next.nextElementSibling) && !/^H\d$/.test(next.tagName);) text += ` ${next.textContent}`;
    return { id: part.id, title, text: text.replaceAll(/\s+/g, " "), place: part.closest("section").ariaLabel ?? "" };
  });
  const contains = (text, word) => text.toLowerCase().includes(word);
  search.parentElement.hidden = false;
  search.oninput = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rank = ({ title }) => words.filter((word) => contains(title, word)).length;
    const found = parts.filter(({ text }) => words[0] && words.every((word) => contains(text, word))).sort((a, b) => rank(b) - rank(a));
    byId("sections").hidden = words.length > 0;
    byId("found").textContent = words[0] ? `${found.length} found` : "";
    byId("results").replaceChildren(...found.map(({ id, title, place, text }) => {
      const start = Math.max(0, text.toLowerCase().indexOf(words[0]) - 30);
      return make("li", {}, make("a", { href: `#${id}` }, title, make("span.note", {}, ` ${place} …${text.slice(start, start + 100)}…`)));
    }));
  };
  search.onkeydown = ({ key }) => { if (key === "Enter") byId("results").querySelector("a")?.click(); };
}

function setUpMenu() {
  const menu = byId("menu");
  const contents = byId("contents");
  const unfold = (open) => {
    menu.ariaExpanded = open;
    contents.className = `contents ${open ? "unfolded" : "folded"}`;
  };
  menu.hidden = false;
  unfold(false);
  menu.onclick = () => unfold(menu.ariaExpanded === "false");
  contents.onclick = ({ target }) => { if (target.closest("a")) unfold(false); };
  document.onkeydown = (event) => {
    if (event.key === "Escape") unfold(false);
    if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    unfold(true);
    byId("search").focus();
  };
}

async function start() {
  setUpMenu();
  try {
    spec = await (await fetch("openapi.json")).json();
    render();
  } catch (error) {
    byId("failed").textContent = `openapi.json could not be loaded: ${error.message}`;
    return;
  }
  markCurrentLink();
  setUpSearch();
  document.documentElement.dataset.rendered = "true";
  // The section in the address is new, or it has moved.
  if (location.hash) byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

start();
