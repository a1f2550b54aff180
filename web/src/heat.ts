/* Where each card's cell lies in the heat map, which nodes it shows, and what they sum up to. Pure. */

import type { NodeKind } from "./contract";
import { FREE, FULL, OUT, WHOLE, type World } from "./world";

/** A node with more cards than this takes a second column. */
const TALLEST = 8;
const LARGEST = 24;
const SMALLEST = 3;
/** From this pitch on every node has its name beside it, in columns at least so tall; else each line its first node's. */
const NAMED = 9;
const NAMED_TALL = 56;
const NAME_WIDE = 13;
const GUTTER = 76;
/** Names below each other need so much. */
const NAME_TALL = 13;
const LETTER = 6;

export interface Layout {
  /** Of a cell with its gap. */
  pitch: number;
  height: number;
  /** Per shown node: its row in the world, and the left upper corner of its block. */
  rows: number[];
  x: Float64Array;
  y: Float64Array;
  /** Cards one above the other. */
  tall: number;
  /** How many blocks a line has: what "up" and "down" jump over. */
  perLine: number;
  /** Whether every node has room for its name. */
  named: boolean;
}

/** A node's name on the map: along its column, or at the edge of the line that it begins. */
export interface Name {
  text: string;
  left: number;
  top: number;
  /** Of the column; of a line, the width. */
  length: number;
}

export type Filter = "all" | "free" | "room" | "trouble";

export function matching(world: World, filter: Filter, kind: number | null): number[] {
  const { nodes } = world.state;
  const rows: number[] = [];
  for (let row = 0; row < nodes.names.length; row++) {
    if (kind !== null && nodes.kind[row] !== kind) continue;
    if (nodes.cards[row]! > 0 && passes(world, row, filter)) rows.push(row);
  }
  return rows;
}

function passes(world: World, row: number, filter: Filter): boolean {
  if (filter === "all") return true;
  if (filter === "trouble")
    return row in world.state.nodes.trouble || someCard(world, row, (card) => world.columns.class[card] === OUT);
  const { columns } = world;
  if (filter === "free") return someCard(world, row, (card) => columns.class[card] === FREE);
  return someCard(
    world,
    row,
    (card) => columns.class[card]! < WHOLE && columns.memory[card]! < FULL && columns.core[card]! < FULL,
  );
}

function someCard(world: World, row: number, test: (card: number) => boolean): boolean {
  for (let card = world.first[row]!; card < world.first[row + 1]!; card++) if (test(card)) return true;
  return false;
}

/** The largest cells with which all nodes fit into `height`; cells are never too small to hit. */
export function layOut(rows: number[], cards: readonly number[], width: number, height: number): Layout {
  const tall = Math.min(TALLEST, Math.max(1, ...new Set(rows.map((row) => cards[row]!))));
  for (let pitch = LARGEST; ; pitch--) {
    const layout = place(rows, cards, width, pitch, tall, pitch >= NAMED && tall * pitch >= NAMED_TALL);
    if (layout.height <= height || pitch <= SMALLEST) return layout;
  }
}

function place(
  rows: number[],
  cards: readonly number[],
  width: number,
  pitch: number,
  tall: number,
  named: boolean,
): Layout {
  const start = named ? NAME_WIDE : gutter(width);
  const gap = pitch >= 8 ? pitch * 0.5 : pitch >= 6 ? 2 : 1;
  const line = tall * pitch + Math.max(3, Math.round(pitch * 0.6));
  const x = new Float64Array(rows.length);
  const y = new Float64Array(rows.length);
  let [left, top, perLine] = [start, 0, 0];
  rows.forEach((row, at) => {
    const wide = Math.ceil(cards[row]! / tall) * pitch;
    if (left > start && left + wide > width) {
      if (top === 0) perLine = at;
      left = start;
      top += line;
    }
    x[at] = left;
    y[at] = top;
    left += wide + gap + (named ? NAME_WIDE : 0);
  });
  return { pitch, height: rows.length ? top + line : 0, rows, x, y, tall, perLine: perLine || rows.length, named };
}

function gutter(width: number): number {
  return Math.min(GUTTER, Math.floor(width / 5));
}

/** The names to write. Of a name that is too long the end is kept: there nodes differ. */
export function namesOf(layout: Layout, names: readonly string[], width: number): Name[] {
  const length = layout.named ? layout.tall * layout.pitch : gutter(width) - LETTER;
  const shown: Name[] = [];
  layout.rows.forEach((row, at) => {
    const [x, top] = [layout.x[at]!, layout.y[at]!];
    const before = shown.at(-1);
    if (!layout.named && before && top < before.top + NAME_TALL) return;
    shown.push({ text: shortened(names[row]!, length), left: layout.named ? x - NAME_WIDE : 0, top, length });
  });
  return shown;
}

function shortened(name: string, length: number): string {
  const most = Math.floor(length / LETTER);
  return name.length <= most ? name : `…${name.slice(1 - most)}`;
}

export interface Cell {
  /** Place among the shown nodes. */
  at: number;
  card: number;
}

/** The cell under a point, or null between them. */
export function cellAt(layout: Layout, cards: readonly number[], x: number, y: number): Cell | null {
  for (let at = 0; at < layout.rows.length; at++) {
    const dx = x - layout.x[at]!;
    const dy = y - layout.y[at]!;
    const count = cards[layout.rows[at]!]!;
    if (dx < 0 || dy < 0 || dy >= layout.tall * layout.pitch || dx >= Math.ceil(count / layout.tall) * layout.pitch)
      continue;
    const card = Math.floor(dx / layout.pitch) * layout.tall + Math.floor(dy / layout.pitch);
    return card < count ? { at, card } : null;
  }
  return null;
}

export function moved(layout: Layout, cards: readonly number[], cell: Cell, key: string): Cell {
  const last = layout.rows.length - 1;
  const count = (at: number): number => cards[layout.rows[at]!]!;
  const clamp = (at: number, card: number): Cell => ({ at, card: Math.max(0, Math.min(card, count(at) - 1)) });
  switch (key) {
    case "ArrowLeft":
      return clamp(Math.max(0, cell.at - 1), cell.card);
    case "ArrowRight":
      return clamp(Math.min(last, cell.at + 1), cell.card);
    case "ArrowUp":
      if (cell.card > 0) return clamp(cell.at, cell.card - 1);
      return cell.at >= layout.perLine ? clamp(cell.at - layout.perLine, Infinity) : cell;
    case "ArrowDown":
      if (cell.card < count(cell.at) - 1) return clamp(cell.at, cell.card + 1);
      return cell.at + layout.perLine <= last ? clamp(cell.at + layout.perLine, 0) : cell;
    case "Home":
      return { at: 0, card: 0 };
    case "End":
      return clamp(last, 0);
    default:
      return cell;
  }
}

export interface KindSum {
  kind: NodeKind;
  index: number;
  nodes: number;
  cards: number;
  free: number;
  out: number;
  /** Booked parts, 0..1. */
  memory: number;
  core: number;
}

export function kindSums(world: World): KindSum[] {
  const { kinds, nodes } = world.state;
  const sums = kinds.map((kind, index) => ({ kind, index, nodes: 0, cards: 0, free: 0, out: 0, memory: 0, core: 0 }));
  for (let row = 0; row < nodes.names.length; row++) {
    const sum = sums[nodes.kind[row]!];
    if (!sum) continue;
    sum.nodes++;
    for (let card = world.first[row]!; card < world.first[row + 1]!; card++) {
      sum.cards++;
      if (world.columns.class[card] === FREE) sum.free++;
      if (world.columns.class[card] === OUT) sum.out++;
      sum.memory += world.columns.memory[card]!;
      sum.core += world.columns.core[card]!;
    }
  }
  for (const sum of sums) {
    sum.memory /= Math.max(1, sum.cards) * FULL;
    sum.core /= Math.max(1, sum.cards) * FULL;
  }
  return sums.filter((sum) => sum.nodes > 0);
}
