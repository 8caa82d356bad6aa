/** A client of the movie catalogue for browsers and Node.js 20 or later, to copy and change. */

const PAUSES_S = [0.5, 1, 2, 4, 8, 10, 10]; // together longer than a restart of the service
const MAX_PAUSE_S = 60; // also if Retry-After is longer
const REPEATED = [409, 429, 503]; // nothing is wrong with the request: try later

/**
 * @typedef {{title: string, year: number, runtime: string, genres: string[],
 *   external_id?: string | null}} MovieInput
 * @typedef {MovieInput & {id: number, version: number, created_at: string,
 *   updated_at: string, etag: string}} Movie
 * @typedef {{status: number, movie?: Movie, problem?: object}} Result
 */

const wait = (pause, after) => {
  const least = /^\d+$/.test(after ?? "") ? Math.min(Number(after), MAX_PAUSE_S) : 0;
  return new Promise((done) => setTimeout(done, 1000 * (Math.max(pause, least) + Math.random() / 4)));
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

/** The service refused a request; `errors` has each mistake with its place. */
export class Problem extends Error {
  /** @param {number} status @param {{type?: string, detail?: string, errors?: object[]}} content */
  constructor(status, content) {
    super(`${status} ${content.detail ?? ""} ${JSON.stringify(content.errors ?? [])}`);
    this.status = status;
    this.slug = content.type?.split("#")[1] ?? "";
    this.errors = content.errors ?? [];
  }
}

/** The requests to a catalogue. */
export class Catalogue {
  /** @param {string} api @param {string} [token] */
  constructor(api, token) {
    this.api = api;
    this.authorization = token ? { Authorization: `Bearer ${token}` } : {};
  }

  /**
   * Send a request; send it again after a lost connection, and when Retry-After says so.
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {{body?: object, headers?: Record<string, string>,
   *   read?: (response: Response) => Promise<T>, timeout?: number}} [options] `read` reads the body
   * @returns {Promise<T>}
   */
  async send(method, path, options = {}) {
    const { body, headers, read = async (response) => parse(await response.text()), timeout = 30_000 } = options;
    for (const pause of [...PAUSES_S, null]) {
      let after = null;
      try {
        const response = await fetch(this.api + path, {
          method,
          headers: { ...this.authorization, ...headers },
          body: body && JSON.stringify(body),
          signal: AbortSignal.timeout(timeout),
        });
        if (response.ok) return await read(response);
        const problem = new Problem(response.status, await response.json().catch(() => ({})));
        const isFinal = !REPEATED.includes(response.status) || problem.slug === "external-id-taken";
        if (isFinal || pause === null) throw problem;
        after = response.headers.get("Retry-After");
      } catch (error) {
        if (error instanceof Problem || error instanceof RangeError || pause === null) throw error;
      }
      await wait(pause, after);
    }
  }

  /**
   * Create a movie once; with a stored key, also if this process is started again.
   * @param {MovieInput} movie @param {string} [key] @returns {Promise<Movie>}
   */
  async create(movie, key = makeKey()) {
    const headers = { "Idempotency-Key": key };
    return (await this.send("POST", "/v1/movies", { body: movie, headers })).movie;
  }

  /**
   * Create up to 100 movies; return the status of each, with its movie or problem.
   * @param {MovieInput[]} movies @param {string} key @returns {Promise<Result[]>}
   */
  async createMany(movies, key) {
    return this.sendBatch("POST", "/v1/movies/batch", movies, { "Idempotency-Key": key });
  }

  /**
   * Send up to 100 movies that may be sent again; return the result of each.
   * @param {string} method @param {string} path @param {object[]} movies
   * @param {Record<string, string>} [more] headers @returns {Promise<Result[]>}
   */
  async sendBatch(method, path, movies, more) {
    const headers = { ...more, Prefer: "handling=lenient" };
    const read = async (response) => [parse(await response.text()).results, response.headers.get("Retry-After")];
    for (const pause of [...PAUSES_S, null]) {
      const [results, after] = await this.send(method, path, { body: { movies }, headers, read });
      if (pause === null || after === null) return results; // else an entry may succeed later
      await wait(pause, after);
    }
  }

  /**
   * Make the movies whose external ids begin with `prefix` equal to the rows of a source. It can be
   * stopped at any point, and begun again. It throws before it deletes more than `maxDeletions`: the
   * source may be incomplete. `kept` movies were equal or replaced.
   * @param {Iterable<MovieInput> | AsyncIterable<MovieInput>} rows
   * @param {string} prefix @param {number} [maxDeletions]
   * @returns {Promise<{created: number, kept: number, deleted: number,
   *   refused: {row: MovieInput, problem: object}[]}>}
   */
  async sync(rows, prefix, maxDeletions = 100) {
    const seen = new Set();
    const report = { created: 0, kept: 0, deleted: 0, refused: [] };
    const put = async (batch) => {
      const results = await this.sendBatch("PUT", "/v1/movies/batch", batch);
      results.forEach(({ status, problem }, place) => {
        if (problem) report.refused.push({ row: batch[place], problem });
        else report[status === 201 ? "created" : "kept"] += 1;
      });
    };
    let batch = [];
    for await (const row of rows) {
      const name = row.external_id ?? "";
      if (seen.has(name) || !name.startsWith(prefix)) {
        throw new RangeError(`expected another external_id with ${prefix}, found ${name}`);
      }
      seen.add(name);
      if (batch.push(row) === 100) await put(batch.splice(0));
    }
    if (batch.length) await put(batch);
    const gone = [];
    for await (const { id, etag, external_id: name } of this.movies()) {
      if (name?.startsWith(prefix) && !seen.has(name)) gone.push({ id, etag });
    }
    if (gone.length > maxDeletions) {
      throw new RangeError(`${gone.length} movies are not in the source: raise maxDeletions?`);
    }
    while (gone.length) {
      const results = await this.sendBatch("POST", "/v1/movies/batch/delete", gone.splice(0, 100));
      report.deleted += results.filter(({ movie }) => movie).length;
    }
    return report;
  }

  /**
   * Change the fields that `decide` returns for the movie as it is now.
   * @param {number} id @param {(movie: Movie) => Partial<MovieInput>} decide
   * @returns {Promise<Movie>}
   */
  async change(id, decide) {
    const path = `/v1/movies/${requireExact(id)}`;
    const read = async (response) => [response.headers.get("ETag"), parse(await response.text()).movie];
    for (;;) {
      const [tag, movie] = await this.send("GET", path, { read });
      const options = { body: decide(movie), headers: { "If-Match": tag } };
      try {
        return (await this.send("PATCH", path, options)).movie;
      } catch (error) {
        if (error.status !== 412) throw error; // else somebody was faster: decide again
        await wait(0);
      }
    }
  }

  /** Return all movies, page by page; not for `id` (one page). @returns {AsyncGenerator<Movie>} */
  async *movies(/** @type {Record<string, string | number>} */ filters) {
    requireExactIds(filters?.id);
    for (let cursor = ""; cursor !== null; ) {
      const query = new URLSearchParams({ page_size: 100, ...filters, ...(cursor && { cursor }) });
      const page = await this.send("GET", `/v1/movies?${query}`);
      yield* page.movies;
      cursor = page.metadata.next_cursor;
    }
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
    const read = async (response) => {
      const lines = (await response.text()).split("\n").filter((line) => line);
      const total = Number(response.headers.get("Total-Records"));
      if (lines.length !== total) throw new Error("the list broke off");
      return [response.headers.get("Changes-Cursor"), lines.map((line) => parse(line))];
    };
    const options = { headers: { Accept: "application/x-ndjson" }, read, timeout: 3_600_000 };
    const [cursor, movies] = await catalogue.send("GET", "/v1/movies", options);
    this.movies = new Map(movies.map((movie) => [movie.id, movie]));
    this.cursor = cursor;
  }
}
