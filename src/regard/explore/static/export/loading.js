// Waits for what a file needs, and says why there is no file.

const PAUSE = 30; // ms between two looks

/** Why no file is saved, in a sentence for the reader. */
export class NotSaved extends Error {}

/**
 * What `read` returns, once it is not null. @template Value @param {import("#data/recording.js").Recording} recording
 * @param {() => Value | null} read @returns {Promise<Value>}
 */
export async function whenLoaded(recording, read) {
  for (;;) {
    const value = read();
    if (value !== null) return value;
    if (recording.disconnected) throw new NotSaved(DISCONNECTED);
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

/** @param {import("#data/recording.js").Recording} recording @param {unknown} error */
export function reasonNotSaved(recording, error) {
  if (recording.disconnected) return DISCONNECTED;
  if (error instanceof NotSaved) return error.message;
  throw error;
}

const DISCONNECTED = "The server no longer responds, so no file was saved.";
