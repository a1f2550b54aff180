import { describe, expect, it } from "vitest";

import { languageOf, TEXTS } from "../src/text";

/** Every text by its path, a function called with placeholders. */
function flat(value: unknown, path = ""): [string, string][] {
  if (typeof value === "function") return [[path, String((value as (...all: string[]) => string)("1", "2"))]];
  if (typeof value === "object" && value !== null)
    return Object.entries(value).flatMap(([key, inner]) => flat(inner, `${path}.${key}`));
  return [[path, String(value)]];
}

describe("the languages", () => {
  it("have the same texts", () => {
    expect(flat(TEXTS.zh).map(([path]) => path)).toEqual(flat(TEXTS.en).map(([path]) => path));
  });

  it("have no empty text", () => {
    for (const text of Object.values(TEXTS)) expect(flat(text).filter(([, told]) => !told.trim())).toEqual([]);
  });

  it("tell every figure that the other tells", () => {
    const en = new Map(flat(TEXTS.en));
    const figures = (told: string): string =>
      [...told.replaceAll("10", "").replaceAll("24", "").matchAll(/[12]/g)].map(String).sort().join();
    for (const [path, told] of flat(TEXTS.zh))
      expect(`${path} ${figures(told)}`).toBe(`${path} ${figures(en.get(path)!)}`);
  });

  it("are not left untranslated", () => {
    const en = new Map(flat(TEXTS.en));
    const same = flat(TEXTS.zh).filter(([path, told]) => /[a-z]{3}/.test(told) && en.get(path) === told);
    expect(same.map(([path]) => path)).toEqual([".keys.3.0"]); // the name of a key
  });
});

describe("the language", () => {
  it("is the browser's first that we speak", () => {
    expect(languageOf(null, ["zh-TW", "en"])).toBe("zh");
    expect(languageOf(null, ["fr", "zh"])).toBe("zh");
    expect(languageOf(null, ["de"])).toBe("en");
  });

  it("is what was chosen here before", () => {
    expect(languageOf("en", ["zh-CN"])).toBe("en");
    expect(languageOf("klingon", ["zh-CN"])).toBe("zh");
  });
});
