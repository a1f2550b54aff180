/* Every card of the cluster as one cell. Painted pixel by pixel: 40,000 cells in a few milliseconds. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { rgb } from "../colour";
import { grouped, percent } from "../format";
import { cellAt, layOut, moved, namesOf, type Cell, type Layout } from "../heat";
import { useShared, useWidth } from "../hooks";
import { go } from "../route";
import type { Text, Words } from "../text";
import { FULL, OUT, type World } from "../world";

export type ColourBy = "class" | "memory" | "core";

const HEIGHT = 560;
/** Cells of this pitch have half a gap. */
const SMALL = 3;
const CLASSES = ["free", "normal", "offline", "online", "mixed", "whole", "out"] as const;

export function HeatMap({ rows, colourBy }: { rows: number[]; colourBy: ColourBy }) {
  const { world, text, words, theme } = useShared();
  const [holder, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<Cell | null>(null);
  const [focused, setFocused] = useState(false);
  const { cards, names } = world.state.nodes;
  const shown = useSame(rows);
  const layout = useMemo(() => (width > 0 ? layOut(shown, cards, width, HEIGHT) : null), [shown, cards, width]);

  const palette = useMemo(() => paletteOf(theme, colourBy), [theme, colourBy]);
  useEffect(() => {
    if (canvas.current && layout) paint(canvas.current, layout, world, { width, theme, colourBy, palette });
  }, [layout, world.revision, palette, width]);

  const cell = at && layout && at.at < layout.rows.length ? at : null;
  const open = (wanted: Cell | null): void => {
    const name = wanted && layout ? names[layout.rows[wanted.at]!] : undefined;
    if (name !== undefined) go({ node: name, pod: null });
  };
  const onKey = (event: KeyboardEvent): void => {
    if (!layout || layout.rows.length === 0) return;
    if (event.key === "Enter") open(cell);
    else if (/^(Arrow|Home|End)/.test(event.key))
      setAt(cell ? moved(layout, cards, cell, event.key) : { at: 0, card: 0 });
    else return;
    event.preventDefault();
  };
  const under = (event: MouseEvent): Cell | null => {
    const box = canvas.current!.getBoundingClientRect();
    return layout && cellAt(layout, cards, event.clientX - box.left, event.clientY - box.top);
  };
  const told = cell && layout ? describe(world, layout.rows[cell.at]!, cell.card, text, words) : null;
  return (
    <>
      <div class="heat" ref={holder}>
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-label={text.heatLabel(grouped(rows.length), grouped(rows.reduce((sum, row) => sum + cards[row]!, 0)))}
          aria-describedby="heat-told"
          style={{ width: `${width}px`, height: `${layout?.height ?? 0}px`, cursor: cell ? "pointer" : "default" }}
          onMouseMove={(event) => setAt(under(event))}
          onMouseLeave={() => !focused && setAt(null)}
          onFocus={() => {
            setFocused(true);
            setAt((now) => now ?? { at: 0, card: 0 });
          }}
          onBlur={() => {
            setFocused(false);
            setAt(null);
          }}
          onClick={(event) => open(under(event))}
          onKeyDown={onKey}
        />
        {layout && <Names layout={layout} names={names} width={width} />}
        {cell && layout && (
          <i
            class="cursor"
            ref={(mark) => {
              if (focused) mark?.scrollIntoView({ block: "nearest" });
            }}
            style={{
              left: `${layout.x[cell.at]! + Math.floor(cell.card / layout.tall) * layout.pitch}px`,
              top: `${layout.y[cell.at]! + (cell.card % layout.tall) * layout.pitch}px`,
              width: `${layout.pitch - 1}px`,
              height: `${layout.pitch - 1}px`,
            }}
          />
        )}
      </div>
      <p id="heat-told" class="told" role="status" aria-live={focused ? "polite" : "off"}>
        {told ?? [text.heatHint, ...(layout?.named ? [] : [text.heatEdge])].join(" ")}
      </p>
    </>
  );
}

/** For those who see the map; others hear the name of each cell. */
function Names({ layout, names, width }: { layout: Layout; names: readonly string[]; width: number }) {
  const shown = useMemo(() => namesOf(layout, names, width), [layout, names, width]);
  const along = layout.named ? "height" : "width";
  return (
    <div class={layout.named ? "names columns" : "names"} aria-hidden="true">
      {shown.map(({ text, left, top, length }) => (
        <span key={`${left} ${top}`} style={{ left: `${left}px`, top: `${top}px`, [along]: `${length}px` }}>
          {text}
        </span>
      ))}
    </div>
  );
}

/** The array of before where the new one says the same, so that what hangs on it is not made again. */
function useSame(rows: number[]): number[] {
  const kept = useRef(rows);
  if (rows.length !== kept.current.length || rows.some((row, at) => row !== kept.current[at])) kept.current = rows;
  return kept.current;
}

function describe(world: World, row: number, card: number, text: Text, words: Words): string {
  const at = world.first[row]! + card;
  const names = [text.freeCard, text.normal, text.offline, text.online, text.mixed, text.whole, text.outCard];
  const { nodes, kinds } = world.state;
  const parts = [
    `${nodes.names[row]} · ${text.cardN(card)}`,
    kinds[nodes.kind[row]!]?.model,
    names[world.columns.class[at]!],
    `${text.memory} ${percent(world.columns.memory[at]! / FULL)}`,
    `${text.compute} ${percent(world.columns.core[at]! / FULL)}`,
    ...(nodes.trouble[row] ?? []).map(words.message),
  ];
  return parts.filter(Boolean).join(" · ");
}

interface Frame {
  width: number;
  theme: string;
  colourBy: ColourBy;
  palette: Palette;
}

function paint(canvas: HTMLCanvasElement, layout: Layout, world: World, frame: Frame): void {
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(frame.width * density));
  canvas.height = Math.max(1, Math.round(layout.height * density));
  const pen = canvas.getContext("2d")!;
  const image = pen.createImageData(canvas.width, canvas.height);
  const box = boxes(image);
  const bad = word(rgb("var(--bad)", frame.theme));
  const { pitch, tall } = layout;
  layout.rows.forEach((row, at) => {
    const [x, y] = [layout.x[at]!, layout.y[at]!];
    paintNode(world, row, frame, (card, left, right) => {
      const side = Math.max(2, Math.round((pitch - (pitch > SMALL ? 1 : 0.5)) * density));
      const from = Math.round((x + Math.floor(card / tall) * pitch) * density);
      const top = Math.round((y + (card % tall) * pitch) * density);
      box(from, top, side, side, left);
      if (left !== right) box(from + (side >> 1), top, side - (side >> 1), side, right);
    });
    if (!(row in world.state.nodes.trouble)) return;
    const count = world.state.nodes.cards[row]!;
    const below = Math.round((y + Math.min(count, tall) * pitch) * density);
    const wide = Math.ceil(count / tall) * Math.round(pitch * density) - 1;
    box(Math.round(x * density), below, wide, Math.ceil(2 * density), bad);
  });
  pen.putImageData(image, 0, 0);
}

type Box = (left: number, top: number, wide: number, tall: number, colour: number) => void;

function boxes(image: ImageData): Box {
  const pixels = new Uint32Array(image.data.buffer);
  const line = image.width; // kept: to ask for it 200,000 times is slow
  return (left, top, wide, tall, colour) => {
    const right = Math.min(left + wide, line);
    for (let y = top; y < top + tall; y++) for (let x = left; x < right; x++) pixels[y * line + x] = colour;
  };
}

/** Tells the two halves of each card's cell. */
function paintNode(world: World, row: number, frame: Frame, cell: (card: number, left: number, right: number) => void) {
  const { columns, first } = world;
  const start = first[row]!;
  for (let at = start; at < first[row + 1]!; at++) {
    const [memory, core] = [columns.memory[at]!, columns.core[at]!];
    const booked = frame.colourBy === "class" ? Math.max(memory, core) : frame.colourBy === "memory" ? memory : core;
    const look = Math.min(OUT, columns.class[at]!) * (FULL + 1) + Math.min(FULL, booked);
    cell(at - start, frame.palette.left[look]!, frame.palette.right[look]!);
  }
}

/** The colours of a cell by class and by how much is booked: one look-up per cell, as there may be 40,000. */
interface Palette {
  left: Uint32Array;
  right: Uint32Array;
}

/** Full colour is fully booked; online and offline on one card are its left and right half. */
function paletteOf(theme: string, colourBy: ColourBy): Palette {
  const colour = (name: string): Triple => rgb(`var(--${name})`, theme);
  const free = colour("free");
  const heat = colour(colourBy === "core" ? "compute" : "memory");
  const table = (mixed: string): Uint32Array => {
    const words = new Uint32Array(CLASSES.length * (FULL + 1));
    CLASSES.forEach((name, kind) => {
      const to = name !== "out" && colourBy !== "class" ? heat : colour(name === "mixed" ? mixed : name);
      for (let booked = 0; booked <= FULL; booked++) {
        const part = name === "out" ? 1 : colourBy === "class" ? 0.35 + (0.65 * booked) / FULL : booked / FULL;
        words[kind * (FULL + 1) + booked] = word(free.map((from, at) => from + (to[at]! - from) * part) as Triple);
      }
    });
    return words;
  };
  return { left: table("online"), right: table("offline") };
}

type Triple = [number, number, number];

/** As a little-endian canvas pixel. */
function word([r, g, b]: Triple): number {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}
