import { describe, expect, it } from "vitest";

import { cellAt, kindSums, layOut, matching, moved, namesOf } from "../src/heat";
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
    expect(cellAt(layout, [16, 8], layout.x[0]! + layout.pitch + 1, 1)).toEqual({ at: 0, card: 8 });
    expect(cellAt(layout, [16, 8], layout.x[1]! + 1, 1)).toEqual({ at: 1, card: 0 });
  });

  it("writes the name of every node beside its column where there is room", () => {
    const few = rows.slice(0, 30);
    const layout = layOut(few, cards, 1400, 560);
    const names = namesOf(layout, few.map((row) => `node-${row}`), 1400);
    expect(names.map((name) => name.text)).toEqual(few.map((row) => `node-${row}`));
    names.forEach((name, at) => {
      expect(name.left).toBeGreaterThanOrEqual(0);
      expect(name.left).toBeLessThan(layout.x[at]!);
      if (at > 0 && name.top === names[at - 1]!.top) expect(name.left).toBeGreaterThan(layout.x[at - 1]!);
    });
  });

  it("writes the name of each line's first node where nodes are too many", () => {
    const many = Array.from({ length: 5000 }, (_, row) => row);
    const eight = many.map(() => 8);
    const layout = layOut(many, eight, 1400, 560);
    const names = namesOf(layout, many.map((row) => `a-rather-long-name-of-node-${row}`), 1400);
    expect(layout.named).toBe(false);
    expect(names.length).toBe(Math.ceil(5000 / layout.perLine));
    expect(names[0]!.text).toMatch(/^….*node-0$/);
    expect(names[1]!.text).toMatch(new RegExp(`node-${layout.perLine}$`));
  });

  it("never writes one name over another", () => {
    const one = rows.map(() => 1);
    const layout = layOut(rows, one, 300, 40);
    const tops = namesOf(layout, rows.map(String), 300).map((name) => name.top);
    tops.slice(1).forEach((top, at) => expect(top - tops[at]!).toBeGreaterThanOrEqual(12));
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
