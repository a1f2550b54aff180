/* Which language: what was chosen here before, else the browser's. */

import { en, type Text } from "./en";
import type { Words } from "./words";
import { zh } from "./zh";

export type Language = "en" | "zh";
export type { Text, Words };

export { WORDS } from "./words";

export const TEXTS: Record<Language, Text> = { en, zh };

export function languageOf(chosen: string | null, browser: readonly string[]): Language {
  if (chosen === "en" || chosen === "zh") return chosen;
  for (const tag of browser) {
    if (/^zh\b/i.test(tag)) return "zh";
    if (/^en\b/i.test(tag)) return "en";
  }
  return "en";
}
