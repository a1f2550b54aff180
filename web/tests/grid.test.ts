import { describe, expect, it } from "vitest";

import { columnsFor } from "../src/grid";

const LEAST = 380;

describe("the columns of a grid", () => {
  it("leave no empty place for 1, 2, 4 and 8 cards at any width", () => {
    for (const count of [1, 2, 4, 8])
      for (let width = 360; width <= 2560; width += 10) expect(count % columnsFor(count, width, LEAST)).toBe(0);
  });

  it("leave at most a place in three empty, whatever the count", () => {
    for (let count = 1; count <= 24; count++)
      for (let width = 360; width <= 2560; width += 10) {
        const columns = columnsFor(count, width, LEAST);
        const places = Math.ceil(count / columns) * columns;
        expect((places - count) / places).toBeLessThanOrEqual(1 / 3);
      }
  });

  it("are never narrower than allowed, and one where nothing fits", () => {
    expect(columnsFor(8, 300, LEAST)).toBe(1);
    for (let width = LEAST; width <= 2560; width += 10) {
      const columns = columnsFor(8, width, LEAST);
      expect((width - (columns - 1) * 12) / columns).toBeGreaterThanOrEqual(LEAST);
    }
  });
});
