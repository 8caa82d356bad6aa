// Renders openapi.json: the operations, their links, and a form that sends each of them.
// Text from the document becomes text nodes, never markup.
"use strict";

const { entries, keys, values } = Object;
const byId = (id) => document.getElementById(id);
const findAll = (selector) => [...document.querySelectorAll(selector)];
const PLAIN = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
let spec;

// Makes an element, for example `p.note`; attributes that start with "on" are event handlers.
function make(kind, attributes = {}, ...children) {
  const [tag, className] = kind.split(".");
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
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

// JSON with a span for the colour of each value.
function highlightJson(text) {
  const parts = text.split(/("(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/);
  return parts.map((part, index) => {
    if (index % 2 === 0) return part;
    const kind = !part.startsWith('"') ? "literal" : /^\s*:/.test(parts[index + 1]) ? "key" : "string";
    return make(`span.${kind}`, {}, part);
  });
}

function makeCodeBlock(label, ...children) {
  return make("pre", { tabindex: 0, role: "group", "aria-label": label }, make("code", {}, children));
}

// The type of a schema: "string", "array of string", "integer".
function describeType(schema) {
  if (schema.type === "array") return `array of ${describeType(schema.items)}`;
  return [schema.type].flat().join(" or ");
}

function describeRange(minimum, maximum, unit = "") {
  if (minimum === undefined) return [];
  // JavaScript does not represent larger limits exactly.
  return [`${minimum} ${maximum <= Number.MAX_SAFE_INTEGER ? `to ${maximum}` : "or more"}${unit}`];
}

// The rules of a schema besides its type.
function renderLimits(schema) {
  const limits = [
    ...describeRange(schema.minimum, schema.maximum),
    ...describeRange(schema.minLength, schema.maxLength, " characters"),
    ...describeRange(schema.minItems, schema.maxItems, " items"),
    schema.uniqueItems && "all different",
    schema.format,
    schema.enum?.join(", "),
    schema.pattern && ["matches ", make("code", {}, schema.pattern)],
  ];
  return limits.filter(Boolean).map((limit) => make("span.limit", {}, limit));
}

function renderField(name, schema, required, place) {
  return make("div.field", {},
    make("dt", {}, make("code", {}, name),
      make("span.type", {}, describeType(schema), place && `, in ${place}`),
      required && make("span.required", {}, "required")),
    make("dd", {}, renderCode(schema.description ?? ""), make("div.limits", {}, renderLimits(schema))));
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
  return make("li", {}, makeStatusBadge(status),
    make("span", {}, links.length ? links : renderCode(response.description),
      headers.map((name, index) => make("span.with", {}, index ? ", " : " with ", make("code", {}, name)))));
}

function renderParameters(operation) {
  const parameters = [...describeToken(operation), ...operation.parameters];
  return make("dl.fields", {}, parameters.map(({ name, description, schema, required, in: place }) =>
    renderField(name, { ...schema, description }, required, place)));
}

// The header for the token as a parameter; none for an operation that ignores it.
function describeToken({ scope, needsToken: required }) {
  if (!scope) return [];
  const description = `\`Bearer\` and a token with the scope \`${scope}\`.` +
    (required ? "" : " This service also allows it without a token.");
  return [{ name: "Authorization", in: "header", required, description, schema: { type: "string" } }];
}

// The token is only in its field; nothing stores it.
function readToken({ scope }) {
  return scope ? byId("token").value.trim() : "";
}

function makeTokenControl() {
  const input = make("input", { id: "token", type: "password", "aria-describedby": "token-problem", ...PLAIN,
    oninput: () => { // the samples depend on it
      for (const form of findAll("form")) form.dispatchEvent(new Event("input"));
    } });
  addEventListener("pagehide", () => { input.value = ""; }); // or going back would show this page with it
  return make("div.token", {}, makeLabelled("Token", input), make("div", { id: "token-problem", role: "alert" }),
    make("p.note", {}, "For the requests that you send from this page. It is kept in memory only, until you",
      " reload or leave the page."));
}

function makeSelect(attributes, choices) {
  return make("select", attributes, choices.map((each) => make("option", {}, each)));
}

function makeInput(id, parameter) {
  const { schema, required } = parameter;
  const shared = { id, name: parameter.name, "data-in": parameter.in, required };
  if (schema.enum) return makeSelect(shared, required ? schema.enum : ["", ...schema.enum]);
  return make("input", { ...shared, value: required ? schema.examples[0] : undefined, ...PLAIN,
    inputmode: schema.type === "integer" ? "numeric" : undefined });
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
  if (body !== undefined) headers["Content-Type"] = form.elements.kind.value;
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
async function send(request, token, { firstChild: status, lastChild: content }, form) {
  content.replaceChildren();
  status.replaceChildren(make("p.waiting", {}, "Sending…"));
  const started = performance.now();
  try {
    const headers = token ? { ...request.headers, Authorization: `Bearer ${token}` } : request.headers;
    const response = await fetch(request.url, { ...request, headers, cache: "no-store" });
    const text = await response.text();
    const milliseconds = Math.round(performance.now() - started);
    const isJSON = /[/+]json\b/.test(response.headers.get("Content-Type"));
    status.replaceChildren(make("p.outcome", {}, makeStatusBadge(response.status), " ",
      make("strong", {}, response.statusText), " ", make("span.took", {}, `${milliseconds} ms`)));
    content.replaceChildren(
      ...(text ? [make("h5", {}, "Body"), makeCodeBlock("Response body", isJSON ? highlightJson(text) : text)] : []),
      make("h5", {}, "Headers"),
      make("dl.headers", {}, [...response.headers].map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    );
    fillInId(response.headers.get("Location"));
    byId("token-problem").replaceChildren();
    if (response.status === 401) return askForToken(form);
  } catch (error) {
    status.replaceChildren(make("p.failed", {}, `No response: ${error.message}`));
  }
  status.scrollIntoView();
}

// After a 401: leads to the field for the token, and back.
function askForToken(form) {
  const back = make("button", { type: "button", onclick: () => form.querySelector(".send").focus() }, "Back to the request");
  byId("token-problem").replaceChildren(make("p.failed", {}, "401: the request needs a valid token."), back);
  byId("token").focus();
}

// After a movie was created, fill its id into the other forms.
function fillInId(location) {
  if (location) for (const input of findAll("input[name=id]")) setValue(input, location.split("/").pop());
}

function setValue(input, value) {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

function makeBodyControls(name, content) {
  const examples = entries(values(content)[0].examples)
    .map(([what, { value }]) => [what, JSON.stringify(value, null, 2)]);
  const [[, text]] = examples;
  const body = make("textarea", { id: `${name}-body`, name: "body", rows: text.split("\n").length, spellcheck: "false" }, text);
  const choose = makeSelect({ id: `${name}-example`, onchange: () => setValue(body, examples[choose.selectedIndex][1]) },
    examples.map(([what]) => what));
  const kinds = makeSelect({ id: `${name}-kind`, name: "kind" }, keys(content));
  return [makeLabelled("Body", body), make("div.pair", {},
    examples.length > 1 && makeLabelled("Example", choose), makeLabelled("Content-Type", kinds))];
}

function makeLabelled(text, input, note) {
  return make("div.control", {},
    make("label", { for: input.id }, text, note && make("span.type", {}, ` ${note}`)), input);
}

function makeForm(operation) {
  const { operationId: name, path, method, parameters, requestBody, scope, needsToken } = operation;
  const output = make("div.output", {}, make("div.result", { role: "status" }), make("div"));
  const sample = makeCodeBlock("Sample");
  sample.id = `${name}-sample`;
  const language = makeSelect({ class: "language", "aria-label": "Language", oninput: () => refresh(), onchange: () => {
    for (const other of findAll(".language")) setValue(other, language.value);
  } }, keys(SAMPLES));
  const copy = make("button.copy", { type: "button", hidden: !navigator.clipboard, onclick: async () => {
    await navigator.clipboard.writeText(sample.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const controls = parameters.map((parameter) =>
    makeLabelled(parameter.name, makeInput(`${name}-parameter-${parameter.name}`, parameter),
      parameter.required ? parameter.in : `${parameter.in}, optional`));
  const refresh = () => {
    sample.firstChild.textContent = SAMPLES[language.value](readForm(form, operation), needsToken || readToken(operation));
  };
  const form = make("form", { "aria-label": `Try ${method} ${path}`, oninput: refresh, onsubmit: (event) => {
    event.preventDefault();
    send(readForm(form, operation), readToken(operation), output, form);
  } }, controls, requestBody && makeBodyControls(name, requestBody.content),
    make("button.send", {}, `Send ${method.toUpperCase()}`));
  refresh();
  const token = [", with ", make("a", { href: "#token" }, "your token"), !needsToken && " if you enter one"];
  return make("div.panel", {},
    make("div.panel-head", {}, make("h4", {}, "Sample"), language, copy),
    sample, make("h4", {}, "Try it"), make("p.note", {}, "Sends a real request", scope && token, "."),
    form, output);
}

function renderOperation(operation) {
  const { operationId: name, summary, path, method, description, requestBody, responses } = operation;
  const sent = requestBody && resolve(values(requestBody.content)[0].schema);
  const status = keys(responses).find((each) => each.startsWith("2"));
  const [[kind, { schema, example }]] = entries(responses[status].content);
  const fields = resolve(schema);
  return make("article.operation", { id: name, "aria-labelledby": `${name}-title` },
    make("header", {},
      make("h3", {}, make("span", { id: `${name}-title` }, summary),
        make("a.anchor", { href: `#${name}`, "aria-label": `Link to ${summary}` }, "#")),
      make("p.route", {}, makeMethodBadge(method),
        make("code", {}, path.split(/(\{[^}]+\})/).map((part) =>
          part.startsWith("{") ? make("em", {}, part) : part.replaceAll("/", "/\u200b"))))),
    make("div.about", {},
      renderParagraphs(description),
      make("h4", {}, "Parameters"), renderParameters(operation),
      sent && [make("h4", {}, "Body"), make("dl.fields", {}, renderFields(sent))],
      make("h4", {}, "Responses"),
      make("ul.responses", {}, entries(responses).map(([each, response]) => renderResponse(each, resolve(response)))),
      fields.properties && make("details", {}, make("summary", {}, `Fields of the ${status} response`), make("dl.fields", {}, renderFields(fields))),
      example && make("details", {}, make("summary", {}, `Example of the ${status} response, ${kind}`),
        makeCodeBlock("Example response", highlightJson(JSON.stringify(example, null, 2))))),
    makeForm(operation));
}

// Adds what the functions above need; `scope` is undefined if the operation ignores tokens.
function describeOperation(path, method, operation) {
  const { parameters, security: [way, alternative] } = operation;
  return { ...operation, path, method, parameters: parameters.map(resolve), scope: way?.token[0], needsToken: way && !alternative };
}

function render() {
  byId("version").textContent = `v${spec.info.version}`;
  byId("description").replaceChildren(...renderParagraphs(spec.info.description), makeTokenControl());
  const operations = entries(spec.paths).flatMap(([path, item]) => entries(item)
    .filter(([method]) => !/head|options/.test(method)).map(([method, operation]) => describeOperation(path, method, operation)));
  for (const { name } of spec.tags) {
    const id = `tag-${name.toLowerCase()}`;
    const tagged = operations.filter((operation) => operation.tags.includes(name));
    byId("operation-links").append(make("h2", {}, make("a", { href: `#${id}` }, name)),
      make("ul", {}, tagged.map(({ operationId, method, path, summary }) => make("li", { "data-text": `${method} ${path} ${summary}`.toLowerCase() },
        make("a", { href: `#${operationId}` }, makeMethodBadge(method), make("span", {}, summary))))));
    byId("operations").append(make("section", { id, "aria-labelledby": `${id}-title` },
      make("h2", { id: `${id}-title` }, name), tagged.map(renderOperation)));
  }
}

// Marks the link of the visible section: the one in the address, else the uppermost.
function markCurrentLink() {
  const links = findAll("nav li a");
  const mark = () => {
    const visible = links.filter((link) => {
      const { top, bottom } = byId(link.hash.slice(1)).getBoundingClientRect();
      return top < innerHeight * 0.3 && bottom > innerHeight * 0.1;
    });
    const current = visible.find((link) => link.hash === location.hash) ?? visible[0];
    for (const link of links) link.setAttribute("aria-current", String(link === current));
  };
  for (const event of ["scroll", "resize", "hashchange"]) addEventListener(event, mark);
  mark();
}

// Hides the links of the operations that lack a word; Enter follows the first link.
function setUpSearch() {
  const search = byId("search");
  const items = findAll("#operation-links li");
  search.parentElement.hidden = false;
  search.oninput = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const item of items) item.hidden = !words.every((word) => item.dataset.text.includes(word));
    for (const list of findAll("#operation-links ul")) {
      list.hidden = list.previousElementSibling.hidden = !list.querySelector("li:not([hidden])");
    }
    byId("found").textContent = search.value && `${items.filter((item) => !item.hidden).length} of ${items.length} operations`;
  };
  search.onkeydown = ({ key }) => { if (key === "Enter") items.find((item) => !item.hidden)?.querySelector("a").click(); };
}

function setUpMenu() {
  const menu = byId("menu");
  const contents = byId("contents");
  const unfold = (open) => {
    menu.setAttribute("aria-expanded", String(open));
    contents.className = `contents ${open ? "unfolded" : "folded"}`;
  };
  menu.hidden = false;
  unfold(false);
  menu.onclick = () => unfold(menu.getAttribute("aria-expanded") === "false");
  contents.onclick = ({ target }) => { if (target.closest("a")) unfold(false); };
  document.onkeydown = ({ key }) => { if (key === "Escape") unfold(false); };
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
