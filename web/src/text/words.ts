/* The server's sentences. They come as data (contract.ts): a code with its values, and the same in English. */

import type { Message, Refused, Wants } from "../contract";
import { zhWords } from "./zh-words";

export interface Words {
  message: (message: Message) => string;
  refused: (refused: Refused) => string;
  wants: (wants: Wants) => string;
  /** Words of others (a driver, a rule of a manifest) that a translation leaves out; null: nothing is left out. */
  detail: (from: { detail?: string }) => string | null;
}

/** English is worded once, by the server (src/aliquot/wording): programs read the same sentences. */
const enWords: Words = {
  message: (message) => message.text,
  refused: (refused) => refused.text,
  wants: (wants) => wants.text,
  detail: () => null,
};

export const WORDS = { en: enWords, zh: zhWords } as const;
