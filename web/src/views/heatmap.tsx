/* Every card of the cluster as one cell. Painted pixel by pixel: 40,000 cells in a few milliseconds. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { rgb } from "../colour";
import { grouped, percent } from "../format";
import { cellAt, layOut, moved, type Cell, type Layout } from "../heat";
import { useShared, useWidth } from "../hooks";
import { go } from "../route";
import type { Text } from "../text";
import { FULL, OUT, type World } from "../world";

export type ColourBy = "class" | "memory" | "core";

const HEIGHT = 560;
const CLASSES = ["free", "normal", "offline", "online", "mixed", "whole", "out"] as const;

export function HeatMap({ rows, colourBy }: { rows: number[]; colourBy: ColourBy }) {
  const { world, text, theme } = useShared();
  const [holder, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<Cell | null>(null);
  const [focused, setFocused] = useState(false);
  const { cards, names } = world.state.nodes;
  const shown = useSame(rows);
  const layout = useMemo(() => (width > 0 ? layOut(shown, cards, width, HEIGHT) : null), [shown, cards, width]);

  useEffect(() => {
    if (canvas.current && layout) paint(canvas.current, layout, world, { width, theme, colourBy });
  }, [layout, world.revision, theme, colourBy, width]);

  const cell = at && layout && at.at < layout.rows.length ? at : null;
  const open = (wanted: Cell | null): void => {
    const name = wanted && layout ? names[layout.rows[wanted.at]!] : undefined;
    if (name !== undefined) go({ node: name, pod: null });
  };
  const onKey = (event: KeyboardEvent): void => {
    if (!layout || layout.rows.length === 0) return;
    if (event.key === "Enter") open(cell);
    else if (/^(Arrow|Home|End)/.test(event.key)) setAt(cell ? moved(layout, cards, cell, event.key) : { at: 0, card: 0 });
    else return;
    event.preventDefault();
  };
  const under = (event: MouseEvent): Cell | null => {
    const box = canvas.current!.getBoundingClientRect();
    return layout && cellAt(layout, cards, event.clientX - box.left, event.clientY - box.top);
  };
  const told = cell && layout ? tell(world, layout.rows[cell.at]!, cell.card, text) : null;
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
        {told ?? text.heatHint}
      </p>
    </>
  );
}

/** The array of before where the new one says the same, so that what hangs on it is not made again. */
function useSame(rows: number[]): number[] {
  const kept = useRef(rows);
  if (rows.length !== kept.current.length || rows.some((row, at) => row !== kept.current[at])) kept.current = rows;
  return kept.current;
}

function tell(world: World, row: number, card: number, text: Text): string {
  const at = world.first[row]! + card;
  const names = [text.freeCard, text.normal, text.offline, text.online, text.mixed, text.whole, text.outCard];
  const { nodes, kinds } = world.state;
  const parts = [
    `${nodes.names[row]} · ${text.cardN(card)}`,
    kinds[nodes.kind[row]!]?.model,
    names[world.columns.class[at]!],
    `${text.memory} ${percent(world.columns.memory[at]! / FULL)}`,
    `${text.compute} ${percent(world.columns.core[at]! / FULL)}`,
    ...(nodes.trouble[row] ?? []),
  ];
  return parts.filter(Boolean).join(" · ");
}

interface Frame {
  width: number;
  theme: string;
  colourBy: ColourBy;
}

function paint(canvas: HTMLCanvasElement, layout: Layout, world: World, { width, theme, colourBy }: Frame): void {
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * density));
  canvas.height = Math.max(1, Math.round(layout.height * density));
  const pen = canvas.getContext("2d")!;
  const image = pen.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const side = Math.max(2, Math.round((layout.pitch - (layout.pitch > 3 ? 1 : 0.5)) * density));
  const palette = paletteOf(theme, colourBy);
  const trouble = word(rgb("var(--bad)", theme));
  const { columns, first, state } = world;
  const booked = (card: number): number => {
    const [memory, core] = [columns.memory[card]!, columns.core[card]!];
    return Math.min(FULL, colourBy === "memory" ? memory : colourBy === "core" ? core : Math.max(memory, core));
  };
  const box = (left: number, top: number, wide: number, tall: number, colour: number): void => {
    for (let y = top; y < top + tall; y++) pixels.fill(colour, y * canvas.width + left, y * canvas.width + Math.min(left + wide, canvas.width));
  };
  layout.rows.forEach((row, at) => {
    const start = first[row]!;
    const count = first[row + 1]! - start;
    for (let card = 0; card < count; card++) {
      const left = Math.round((layout.x[at]! + Math.floor(card / layout.tall) * layout.pitch) * density);
      const top = Math.round((layout.y[at]! + (card % layout.tall) * layout.pitch) * density);
      const look = Math.min(OUT, columns.class[start + card]!) * (FULL + 1) + booked(start + card);
      box(left, top, side, side, palette.left[look]!);
      if (palette.left[look] !== palette.right[look]) box(left + (side >> 1), top, side - (side >> 1), side, palette.right[look]!);
    }
    if (row in state.nodes.trouble) {
      const top = Math.round((layout.y[at]! + Math.min(count, layout.tall) * layout.pitch) * density);
      box(Math.round(layout.x[at]! * density), top, Math.ceil(count / layout.tall) * Math.round(layout.pitch * density) - 1, Math.ceil(2 * density), trouble);
    }
  });
  pen.putImageData(image, 0, 0);
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
  const heat = colour("accent");
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
