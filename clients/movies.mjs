/** A client of the movie catalogue for browsers and Node.js 20 or later, to copy and change. */

const PAUSES_S = [0.5, 1, 2, 4, 8, 10, 10]; // together longer than a restart of the service
const MAX_PAUSE_S = 60; // also if Retry-After is longer
const ROUNDS = 50; // to change a movie that others change, too
const [MOVIES, BATCH] = ["/v1/movies", "/v1/movies/batch"];
const NO_TAG = '"none"'; // of no movie: one that has the sent fields is `equal`, any other a 412

/**
 * @typedef {{title: string, year: number, runtime: string, genres: string[],
 *   external_id?: string | null}} MovieInput
 * @typedef {MovieInput & {id: number, version: number, created_at: string,
 *   updated_at: string, etag: string}} Movie
 * @typedef {{status: number, movie?: Movie, problem?: object}} Result
 */

/** Run `act` with a signal that ends it in time, or with `signal`. (AbortSignal.any loses timeouts in Node.js 20.) */
const within = async (seconds, signal, act) => {
  signal?.throwIfAborted();
  const controller = new AbortController();
  const end = () => controller.abort();
  const timer = setTimeout(end, 1000 * seconds);
  signal?.addEventListener("abort", end);
  return act(controller.signal).catch((cause) => {
    signal?.throwIfAborted();
    throw new Lost("no response, or not in time", { cause });
  }).finally(() => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  });
};

const wait = (pause, after, signal) => {
  const least = /^\d+$/.test(after ?? "") ? Math.min(Number(after), MAX_PAUSE_S) : 0;
  const time = Math.max(pause, least) + Math.random() / 4;
  return within(time, signal, (end) => new Promise((done) => end.addEventListener("abort", done)));
};

/** Whether a request may be sent again that may have been carried out: or a movie might be created twice. */
const isRepeatable = (method, path, body, headers) => {
  if (["GET", "HEAD", "DELETE"].includes(method) || (method === "PUT" && path === BATCH)) return true;
  if (method === "POST" && [MOVIES, BATCH].includes(path)) return headers.has("Idempotency-Key");
  if (path.startsWith(BATCH)) return body?.movies.every(({ etag }) => etag) ?? false;
  return (headers.get("If-Match") ?? "*") !== "*";
};

const makeKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** JavaScript rounds numbers above 2^53, so another movie would be meant. @param {number} id */
const requireExact = (id) => {
  if (Number.isSafeInteger(id)) return id;
  throw new RangeError(`id: expected a whole number up to 2^53 - 1, got ${id} (${typeof id})`);
};

const requireExactIds = (value) => [value].flat().filter((id) => typeof id === "number").forEach(requireExact);

const parse = (text) => JSON.parse(text, (key, value) => {
  if (key === "id" || key === "missing_ids") requireExactIds(value);
  return value;
});

const SYNC = { created: ["POST", BATCH], changed: ["PUT", BATCH], deleted: ["POST", `${BATCH}/delete`] };

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const has = (movie, row) => Object.keys(row).every((name) => isSame(row[name], movie[name]));

/** What to do for a row; the movie may be one of `sent`. null: the source has none; no movie. */
const planSync = (row, movie, [tag, ...sent]) => {
  if (!movie) return !row ? "equal" : sent.includes(null) ? "created" : "conflict";
  if (row && has(movie, row)) return "equal";
  const isOwn = movie.etag === tag || sent.some((each) => each && has(movie, each));
  return !isOwn ? "conflict" : row ? "changed" : "deleted";
};

/** The service refused a request; `errors` has each mistake with its place. */
export class Problem extends Error {
  /** @param {Response} response @param {string} text its body */
  constructor(response, text) {
    const isJson = text && response.headers.get("Content-Type")?.includes("json"); // a proxy may send HTML
    const content = isJson ? JSON.parse(text) : {};
    const other = response.headers.get("Location") || response.statusText || response.type;
    super(`${response.status} ${content.detail ?? other} ${JSON.stringify(content.errors ?? [])}`);
    this.status = response.status;
    this.slug = content.type?.split("#")[1] ?? "";
    this.errors = content.errors ?? [];
  }
}

/** There was no response: the request may have been carried out, as after a 503. */
export class Lost extends Error {}

/** The requests to a catalogue. */
export class Catalogue {
  /** @param {string} api @param {string} [token] @param {AbortSignal} [signal] ends each request */
  constructor(api, token, signal) {
    this.api = api;
    this.authorization = token ? { Authorization: `Bearer ${token}` } : {};
    this.signal = signal;
  }

  /**
   * Send a request; send it again if that is safe, and may help. Throws `Problem`, also for a
   * redirect, or `Lost`. The 404 of a repeated DELETE is returned: the movie is gone.
   * @template T @param {string} method @param {string} path
   * @param {{body?: object, headers?: Record<string, string>, timeout?: number, signal?: AbortSignal,
   *   read?: (text: string, headers: Headers) => T}} [options] `read` reads the response
   * @returns {Promise<T>}
   */
  async send(method, path, options = {}) {
    const { body, read = (text) => text && parse(text), timeout = 30_000, signal = this.signal } = options;
    const headers = new Headers({ ...this.authorization, ...options.headers });
    const init = { method, headers, body: body && JSON.stringify(body), redirect: "manual" };
    // A wrong argument throws a TypeError here; in `fetch`, it would be taken for a lost connection.
    const { url } = new Request(this.api + path, init);
    if (!/^https?:/.test(url)) throw new TypeError(`expected http or https, got ${url}`);
    const isRead = method === "GET" || method === "HEAD";
    const mayRepeat = isRepeatable(method, path, body, headers);
    let wasLost = false;
    for (const pause of [...PAUSES_S, null]) {
      let after = null;
      try {
        const [response, text] = await within(timeout / 1000, signal, async (end) => {
          const response = await fetch(url, { ...init, signal: end });
          return [response, await response.text()];
        });
        const { status, ok } = response;
        if (ok || (wasLost && method === "DELETE" && status === 404)) return read(text, response.headers);
        after = response.headers.get("Retry-After");
        // Nothing was carried out (409, 429), or perhaps; 502 and 504 are by a proxy.
        const mayHelp = { 409: after !== null, 429: true, 502: isRead, 503: mayRepeat, 504: isRead };
        if (pause === null || !mayHelp[status]) throw new Problem(response, text);
        wasLost ||= status === 503;
      } catch (error) {
        if (pause === null || !mayRepeat || !(error instanceof Lost)) throw error;
        wasLost = true;
      }
      await wait(pause, after, signal);
    }
  }

  /**
   * Create a movie once; with a stored key, also if this process is started again.
   * @param {MovieInput} movie @param {string} [key] @returns {Promise<Movie>}
   */
  async create(movie, key = makeKey()) {
    const headers = { "Idempotency-Key": key };
    return (await this.send("POST", MOVIES, { body: movie, headers })).movie;
  }

  /**
   * Create up to 100 movies; return the status of each, with its movie or problem.
   * @param {MovieInput[]} movies @param {string} key @returns {Promise<Result[]>}
   */
  async createMany(movies, key) {
    return this.sendBatch("POST", BATCH, movies, { "Idempotency-Key": key });
  }

  /**
   * Send up to 100 movies, and again if that is safe; return the result of each.
   * @param {string} method @param {string} path @param {object[]} movies
   * @param {Record<string, string>} [more] headers @returns {Promise<Result[]>}
   */
  async sendBatch(method, path, movies, more) {
    const [body, headers] = [{ movies }, { ...more, Prefer: "handling=lenient" }];
    const read = (text, answered) => [parse(text).results, answered.get("Retry-After")];
    const mayRepeat = isRepeatable(method, path, body, new Headers(headers));
    let results = [];
    for (const pause of [...PAUSES_S, null]) {
      const [now, after] = await this.send(method, path, { body, headers, read });
      results = now.map((result, place) => (results[place]?.movie ? results[place] : result));
      if (pause === null || after === null || !mayRepeat) return results; // else an entry may succeed later
      await wait(pause, after, this.signal);
    }
  }

  /**
   * Bring the changes of a source to its movies, whose external ids begin with `prefix`. `memory`, a
   * Map, keeps what was sent; `save` stores it. Only rows that have changed since are sent. A movie
   * that others have changed or deleted since is a conflict, as is one that differs and was never
   * sent. With `overwrite`, the rows win. A `dryRun` writes nothing. It can be stopped at any point,
   * and begun again. It throws, and writes nothing, if it would delete more than `maxDeletions`: the
   * source may be incomplete. `conflicts` have the movie as it is now.
   * @param {Iterable<MovieInput> | AsyncIterable<MovieInput>} rows @param {string} prefix
   * @param {{memory?: Map<string, any>, save?: (memory: Map<string, any>) => any, maxDeletions?: number,
   *   overwrite?: boolean, dryRun?: boolean}} [options]
   * @returns {Promise<{created: number, changed: number, equal: number, deleted: number,
   *   refused: {entry: object, problem: object}[], conflicts: {entry: object, movie?: Movie}[]}>}
   */
  async sync(rows, prefix, options = {}) {
    const { memory: sent = new Map(), save = () => {}, maxDeletions = 100, overwrite, dryRun } = options;
    if (!prefix || typeof prefix !== "string") throw new RangeError("expected a prefix, or all would be deleted");
    const wanted = new Map();
    for await (const row of rows) {
      const name = row.external_id ?? "";
      if (wanted.has(name) || !name.startsWith(prefix)) {
        throw new RangeError(`expected external ids with ${prefix}, once each; found ${name}`);
      }
      wanted.set(name, JSON.parse(JSON.stringify(row))); // the caller may change the row
    }
    const report = { created: 0, changed: 0, equal: 0, deleted: 0, refused: [], conflicts: [] };
    const rest = new Map([...wanted].filter(([name, row]) => overwrite || !isSame(sent.get(name)?.slice(1), [row])));
    const mine = [...sent.keys()].filter((name) => name.startsWith(prefix) && !isSame(sent.get(name).slice(1), [null]));
    report.equal = wanted.size - rest.size;
    const isNeeded = overwrite || rest.size || mine.some((name) => !wanted.has(name));
    const [, movies] = isNeeded ? await this.stream({ external_id_prefix: prefix }) : [null, []];
    const now = new Map(movies.map((movie) => [movie.external_id, movie]));
    for (const name of [...mine, ...now.keys()]) if (!wanted.has(name)) rest.set(name, null);
    const [notes, todo] = [[], { created: [], changed: [], deleted: [] }];
    for (const [name, row] of rest) {
      const movie = now.get(name);
      const tag = movie?.etag ?? null;
      const outcome = planSync(row, movie, overwrite ? [tag, null] : sent.get(name) ?? [null, null]);
      const entry = row ? { ...row, ...(movie && !overwrite && { etag: tag }) } : { id: movie?.id, etag: tag };
      if (outcome === "conflict") {
        report.conflicts.push({ entry, movie });
        continue;
      }
      notes.push([name, outcome === "equal" ? [tag, row] : [tag, movie ? row : null, row]]);
      if (outcome === "equal" || dryRun) report[outcome] += 1;
      else todo[outcome].push([name, entry]);
    }
    const gone = todo.deleted.length + report.deleted;
    if (gone > maxDeletions) throw new RangeError(`${gone} movies are not in the source: raise maxDeletions?`);
    const keep = async (entries) => {
      for (const [name, entry] of entries) sent.set(name, entry);
      await save(sent);
    };
    if (!dryRun) await keep(notes); // before anything is sent: after a crash, the next run knows what may be
    for (const [outcome, [method, path]] of Object.entries(SYNC)) {
      while (todo[outcome].length) {
        const some = todo[outcome].splice(0, 100);
        const key = { "Idempotency-Key": makeKey() };
        const results = await this.sendBatch(method, path, some.map(([, entry]) => entry), key);
        const done = [];
        results.forEach((result, place) => {
          const { status, movie, problem } = result;
          const [name, entry] = some[place];
          // 404: it is gone, perhaps by the same request, whose response got lost.
          if (status < 300 || (status === 404 && outcome === "deleted")) {
            report[result.outcome ?? outcome] += 1;
            done.push([name, [movie?.etag ?? null, rest.get(name)]]);
          } else if (status === 409 && outcome === "created") { // perhaps with the same fields
            todo.changed.push([name, { ...entry, etag: NO_TAG }]);
          } else if ([409, 412].includes(status)) report.conflicts.push({ entry, movie: now.get(name) });
          else report.refused.push({ entry, problem });
        });
        await keep(done);
      }
    }
    return report;
  }

  /**
   * Change the fields that `decide` returns for the movie as it is now.
   * @param {number} id @param {(movie: Movie) => Partial<MovieInput>} decide
   * @returns {Promise<Movie>}
   */
  async change(id, decide) {
    const path = `${MOVIES}/${requireExact(id)}`;
    for (let rounds = 1; ; rounds += 1) {
      const { movie } = await this.send("GET", path);
      const headers = { "If-Match": movie.etag }; // not the header ETag, which a proxy may weaken
      try {
        return (await this.send("PATCH", path, { body: decide(movie), headers })).movie;
      } catch (error) {
        if (error.status !== 412 || rounds === ROUNDS) throw error; // else somebody was faster
        await wait(0, null, this.signal);
      }
    }
  }

  /** Return all movies that match, page by page. @returns {AsyncGenerator<Movie>} */
  async *movies(/** @type {Record<string, string | number>} */ filters) {
    requireExactIds(filters?.id);
    const size = filters?.id || filters?.external_id ? {} : { page_size: 100 };
    for (let cursor = ""; cursor !== null; ) {
      const query = new URLSearchParams({ ...size, ...filters, ...(cursor && { cursor }) });
      const page = await this.send("GET", `${MOVIES}?${query}`);
      yield* page.movies;
      cursor = page.metadata.next_cursor;
    }
  }

  /** Return the cursor of the feed, and all movies that match, in one request. */
  async stream(/** @type {Record<string, string>} */ filters) {
    const read = (text, headers) => {
      const lines = text.split("\n").filter((line) => line);
      if (lines.length !== Number(headers.get("Total-Records"))) throw new Lost("the list broke off");
      return [headers.get("Changes-Cursor"), lines.map((line) => parse(line))];
    };
    const options = { headers: { Accept: "application/x-ndjson" }, read, timeout: 3_600_000 };
    return this.send("GET", `${MOVIES}?${new URLSearchParams(filters)}`, options);
  }
}

/** A copy of the catalogue in memory. To store it, store the movies and the cursor together. */
export class Copy {
  /** @type {Map<number, Movie>} */ movies = new Map();
  /** @type {string | null} */ cursor = null;

  /** Get all movies the first time, then the changes; wait up to 20 s if there are none. */
  async update(/** @type {Catalogue} */ catalogue) {
    try {
      if (this.cursor === null) return await this.copyAll(catalogue);
      const path = `/v1/changes?wait=20&after=${encodeURIComponent(this.cursor)}`;
      const { changes, metadata } = await catalogue.send("GET", path);
      for (const { id, movie } of changes) {
        if (movie) this.movies.set(id, movie);
        else this.movies.delete(id);
      }
      this.cursor = metadata.next_cursor;
    } catch (error) {
      if (error.status !== 410) throw error;
      await this.copyAll(catalogue); // the feed no longer has all changes after the cursor
    }
  }

  async copyAll(/** @type {Catalogue} */ catalogue) {
    const [cursor, movies] = await catalogue.stream();
    this.movies = new Map(movies.map((movie) => [movie.id, movie]));
    this.cursor = cursor;
  }
}
