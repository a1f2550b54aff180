import { describe, expect, it } from "vitest";

import { cellAt, kindSums, layOut, matching, moved } from "../src/heat";
import { byReason } from "../src/reasons";
import type { DashboardState, WaitingPod } from "../src/contract";
import { begin } from "../src/world";

const b64 = (...bytes: number[]): string => btoa(String.fromCharCode(...bytes));

const world = begin({
  kinds: [
    { offers: ["qgpu"], policy: "burst-share", model: "A", cards: 2, memory_mib: 100 },
    { offers: ["t9k"], policy: "fixed-share", model: "B", cards: 1, memory_mib: 100 },
  ],
  nodes: { names: ["full", "roomy", "free", "sick"], kind: [0, 0, 1, 1], cards: [2, 2, 1, 1], trouble: {} },
  cards: { memory: b64(200, 200, 100, 200, 0, 0), core: b64(50, 200, 100, 0, 0, 0), class: b64(1, 5, 3, 1, 0, 6) },
  live: null,
} as unknown as DashboardState);

describe("the filter", () => {
  it.each([
    ["all", [0, 1, 2, 3]],
    ["free", [2]],
    ["room", [1, 2]],
    ["trouble", [3]],
  ] as const)("%s shows nodes %j", (filter, rows) => expect(matching(world, filter, null)).toEqual(rows));

  it("of a kind shows only its nodes", () => expect(matching(world, "all", 1)).toEqual([2, 3]));
});

it("kinds are summed up from their cards", () => {
  const [a, b] = kindSums(world);
  expect(a).toMatchObject({ nodes: 2, cards: 4, free: 0, out: 0, memory: 700 / 800 });
  expect(b).toMatchObject({ nodes: 2, cards: 2, free: 1, out: 1, memory: 0 });
});

describe("the map", () => {
  const cards = Array.from({ length: 100 }, () => 8);
  const rows = cards.map((_, row) => row);

  it("uses the largest cells that fit", () => {
    expect(layOut(rows, cards, 2000, 500).pitch).toBeGreaterThan(layOut(rows, cards, 300, 200).pitch);
    expect(layOut(rows, cards, 2000, 500).height).toBeLessThanOrEqual(500);
  });

  it("finds each card where it was put", () => {
    const layout = layOut(rows, cards, 400, 300);
    for (const at of [0, 1, 57, 99])
      for (const card of [0, 3, 7])
        expect(cellAt(layout, cards, layout.x[at]! + 1, layout.y[at]! + card * layout.pitch + 1)).toEqual({ at, card });
    expect(cellAt(layout, cards, 1, layout.height + 5)).toBeNull();
  });

  it("gives a node of sixteen cards a second column, and finds the cards in it", () => {
    const layout = layOut([0, 1], [16, 8], 400, 300);
    expect(cellAt(layout, [16, 8], layout.pitch + 1, 1)).toEqual({ at: 0, card: 8 });
    expect(cellAt(layout, [16, 8], layout.x[1]! + 1, 1)).toEqual({ at: 1, card: 0 });
  });

  it("lets arrows walk over cards, nodes and lines, and never out of it", () => {
    const layout = layOut(rows, cards, 400, 300);
    const go = (at: number, card: number, key: string) => moved(layout, cards, { at, card }, key);
    expect(go(0, 0, "ArrowRight")).toEqual({ at: 1, card: 0 });
    expect(go(0, 0, "ArrowDown")).toEqual({ at: 0, card: 1 });
    expect(go(0, 7, "ArrowDown")).toEqual({ at: layout.perLine, card: 0 });
    expect(go(layout.perLine, 0, "ArrowUp")).toEqual({ at: 0, card: 7 });
    expect(go(0, 0, "ArrowUp")).toEqual({ at: 0, card: 0 });
    expect(go(99, 7, "ArrowRight")).toEqual({ at: 99, card: 7 });
    expect(go(50, 3, "Home")).toEqual({ at: 0, card: 0 });
  });
});

it("Pods with one reason are listed together, the most frequent first", () => {
  const pods = ["a", "b", "b"].map((text, at) => ({ key: String(at), reason: { text } }) as WaitingPod);
  expect(byReason(pods).map((group) => [group.reason.text, group.pods.length])).toEqual([
    ["b", 2],
    ["a", 1],
  ]);
});
