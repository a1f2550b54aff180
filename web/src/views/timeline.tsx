/* Who held a card in the last minute: a lane per tenant, height is the share, hatching a pause, a mark a preemption. */

import { useEffect, useRef, useState } from "preact/hooks";

import { resolved, tenantColour } from "../colour";
import type { Card, CardTimeline, Timeline } from "../contract";
import { shortKey } from "../format";
import { useShared, useWidth } from "../hooks";
import { axisSeconds, bucketAt, nearestPreemption, runsOf } from "../lanes";
import type { Text } from "../text";
import { Swatch, TenantName } from "./card";

const LANE = 26;
const GAP = 4;
const AXIS = 16;

export function TimelineView({ card, timeline }: { card: Card; timeline: Timeline }) {
  const { text } = useShared();
  const told = timeline.cards[card.uuid];
  if (!told || told.tenants.length === 0) return null;
  return (
    <section class="timeline" aria-label={text.timelineLabel(card.index)}>
      <h4>
        {text.cardN(card.index)}{" "}
        <small>
          {card.model}
          {told.preemptions.length > 0 && ` · ${text.preemptions(told.preemptions.length)}`}
        </small>
      </h4>
      <div class="lanes">
        <ul class="lane-names">
          {told.tenants.map((lane) => (
            <li key={lane.key}>
              <TenantName tenant={lane} users={card.tenants.find((tenant) => tenant.key === lane.key)?.users ?? null} />
            </li>
          ))}
        </ul>
        <Lanes told={told} timeline={timeline} label={text.timelineLabel(card.index)} />
      </div>
    </section>
  );
}

function Lanes({ told, timeline, label }: { told: CardTimeline; timeline: Timeline; label: string }) {
  const { text, theme, world } = useShared();
  const [holder, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [mouse, setMouse] = useState<number | null>(null);
  const height = told.tenants.length * (LANE + GAP) + AXIS;

  useEffect(() => {
    if (canvas.current && width > 0)
      draw(canvas.current, told, timeline, { width, height, theme, mouse, text });
  }, [told, timeline, width, height, theme, mouse, text, world.revision]);

  const at = mouse === null ? null : bucketAt(mouse / Math.max(1, width), timeline);
  const near =
    at === null
      ? null
      : nearestPreemption(told.preemptions, at.time, (timeline.buckets * timeline.step * 6) / Math.max(1, width));
  return (
    <div
      class="lane-canvas"
      ref={holder}
      onMouseLeave={() => setMouse(null)}
      onMouseMove={(event) => setMouse(event.clientX - event.currentTarget.getBoundingClientRect().left)}
    >
      <canvas ref={canvas} role="img" aria-label={label} style={{ width: `${width}px`, height: `${height}px` }} />
      {at !== null && mouse !== null && (
        <div class={mouse > width / 2 ? "tip left" : "tip"} style={{ left: `${mouse}px` }}>
          <b>{text.ago((timeline.until - at.time).toFixed(1))}</b>
          {near && (
            <em>
              ⚡{" "}
              {near.by === null
                ? text.lostCard(shortKey(near.of))
                : text.tookFrom(shortKey(near.by), shortKey(near.of))}
            </em>
          )}
          {told.tenants.map((lane) => (
            <span key={lane.key}>
              <Swatch tenant={lane} /> {shortKey(lane.key)}{" "}
              <b>{lane.paused[at.bucket] ? text.states["paused"] : `${Math.round(lane.shares[at.bucket] ?? 0)}%`}</b>
            </span>
          ))}
        </div>
      )}
    </div>
  );
}

interface Frame {
  width: number;
  height: number;
  theme: string;
  mouse: number | null;
  text: Text;
}

function draw(canvas: HTMLCanvasElement, told: CardTimeline, timeline: Timeline, frame: Frame): void {
  const { width, height, theme } = frame;
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  const pen = canvas.getContext("2d")!;
  pen.scale(density, density);
  const bucket = width / timeline.buckets;
  const snapped = (at: number): number => Math.round(at * bucket * density) / density; // no seams between buckets
  told.tenants.forEach((lane, row) => {
    const top = row * (LANE + GAP);
    const colour = tenantColour(lane.key, lane.class);
    pen.fillStyle = resolved("var(--track)", theme);
    pen.fillRect(0, top, width, LANE);
    for (const run of runsOf(lane.paused))
      hatch(
        pen,
        { x: run.start * bucket, y: top, width: run.length * bucket, height: LANE },
        resolved("var(--paused)", theme),
      );
    pen.fillStyle = resolved(colour, theme);
    lane.shares.forEach((share, at) => {
      if (share <= 0) return;
      const tall = Math.max(1, (Math.min(100, share) / 100) * LANE);
      pen.fillRect(snapped(at), top + LANE - tall, snapped(at + 1) - snapped(at), tall);
    });
  });
  marks(pen, told, timeline, frame);
  axis(pen, timeline, frame);
}

function hatch(
  pen: CanvasRenderingContext2D,
  box: { x: number; y: number; width: number; height: number },
  colour: string,
): void {
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y, box.width, box.height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.beginPath();
  const first = Math.floor((box.x - box.height) / 6) * 6; // on one raster, so that hatching does not crawl between runs
  for (let x = first; x < box.x + box.width; x += 6) {
    pen.moveTo(x, box.y + box.height);
    pen.lineTo(x + box.height, box.y);
  }
  pen.stroke();
  pen.restore();
}

/** A line from the lane of who took the card to the lane of who lost it, with a head there. */
function marks(pen: CanvasRenderingContext2D, told: CardTimeline, timeline: Timeline, { width, theme }: Frame): void {
  const row = new Map(told.tenants.map((lane, at) => [lane.key, at]));
  const span = timeline.buckets * timeline.step;
  pen.strokeStyle = pen.fillStyle = resolved("var(--ink)", theme, 0.85);
  pen.lineWidth = 1;
  for (const preemption of told.preemptions) {
    const of = row.get(preemption.of);
    if (of === undefined) continue;
    const by = preemption.by === null ? of : (row.get(preemption.by) ?? of);
    const x = Math.round((1 - (timeline.until - preemption.at) / span) * width) + 0.5;
    const top = of * (LANE + GAP);
    pen.beginPath();
    pen.moveTo(x, by * (LANE + GAP) + LANE / 2);
    pen.lineTo(x, by > of ? top : top + LANE);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x - 3.5, top);
    pen.lineTo(x + 3.5, top);
    pen.lineTo(x, top + 6);
    pen.fill();
  }
}

function axis(pen: CanvasRenderingContext2D, timeline: Timeline, { width, height, theme, mouse, text }: Frame): void {
  const span = timeline.buckets * timeline.step;
  pen.fillStyle = resolved("var(--quiet)", theme);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "alphabetic";
  for (const ago of axisSeconds(span, width)) {
    const x = width * (1 - ago / span);
    pen.textAlign = ago === 0 ? "right" : ago >= span ? "left" : "center";
    pen.fillText(ago === 0 ? text.now : text.secondsAgo(ago), x, height - 2);
  }
  if (mouse === null) return;
  pen.fillStyle = resolved("var(--ink)", theme, 0.4);
  pen.fillRect(Math.round(mouse), 0, 1, height - AXIS);
}
