/* How it went: booked, busy, fragmentation, Pods; the last ten minutes from the ticks, the last day by asking. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { resolved } from "../colour";
import type { History, Series } from "../contract";
import { compact, few } from "../format";
import { useAsked, useShared, useWidth } from "../hooks";
import { Choice } from "./overview";

const RANGES = ["10m", "24h"] as const;
type Range = (typeof RANGES)[number];
const DAY_EVERY = 60_000;
const HEIGHT = 150;

interface Line {
  name: Series;
  label: string;
  colour: string;
}

export function Charts() {
  const { world, text } = useShared();
  const [range, setRange] = useState<Range>("10m");
  const day = useAsked<History>(range === "24h" ? "history?range=24h" : null, DAY_EVERY);
  const history = range === "10m" ? world.state.history : day.is === "here" ? day.value : null;
  const booked: Line[] = [
    { name: "memory", label: text.memory, colour: "var(--memory)" },
    { name: "core", label: text.compute, colour: "var(--compute)" },
    { name: "busy", label: text.busy, colour: "var(--busy)" },
  ];
  const pods: Line[] = [
    { name: "online", label: text.online, colour: "var(--online)" },
    { name: "offline", label: text.offline, colour: "var(--offline)" },
    { name: "normal", label: text.normal, colour: "var(--normal)" },
    { name: "waiting", label: text.waiting, colour: "var(--waiting)" },
  ];
  return (
    <section class="box">
      <div class="head">
        <h2>{text.charts}</h2>
        <Choice
          name=""
          options={RANGES}
          labels={{ "10m": text.tenMinutes, "24h": text.dayLong }}
          value={range}
          onChange={setRange}
        />
      </div>
      {history === null || history.times.length === 0 ? (
        <p class="quiet">{history === null ? text.loading : text.noHistory}</p>
      ) : (
        <div class="charts">
          <Chart title={text.chartBooked} lines={booked} history={history} top={100} />
          <Chart
            title={text.chartFragmentation}
            lines={[{ name: "fragmentation", label: text.fragmentation, colour: "var(--fragmentation)" }]}
            history={history}
            top={null}
          />
          <Chart title={text.chartPods} lines={pods} history={history} top={null} />
        </div>
      )}
    </section>
  );
}

interface ChartProps {
  title: string;
  lines: Line[];
  history: History;
  /** The scale's upper end where it is known. */
  top: number | null;
}

function Chart({ title, lines, history, top }: ChartProps) {
  const { theme } = useShared();
  const [holder, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const told = lines.filter((line) => history.series[line.name]?.some((value) => value !== null));
  const shape = `${theme} ${told.map((line) => line.label).join()} ${title}`;

  useEffect(() => {
    if (!holder.current || width === 0) return undefined;
    plot.current = new uPlot(options(told, theme, width, top, setAt), dataOf(history, told), holder.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, width > 0]);
  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height: HEIGHT });
  }, [width]);
  useEffect(() => plot.current?.setData(dataOf(history, told)), [history]);

  const when = at === null ? undefined : history.times[at];
  const figure = (line: Line): string => {
    const value = history.series[line.name]?.at(when === undefined ? -1 : at!);
    return value === null || value === undefined ? "–" : few(value);
  };
  return (
    <figure class="chart" aria-label={`${title}: ${told.map((line) => `${line.label} ${figure(line)}`).join(", ")}`}>
      <figcaption>
        <b>
          {title} {when !== undefined && <small>{clock(when)}</small>}
        </b>
        {told.map((line) => (
          <span key={line.name}>
            <i class="swatch" style={{ background: line.colour }} aria-hidden="true" /> {line.label.toLowerCase()}{" "}
            <b>{figure(line)}</b>
          </span>
        ))}
      </figcaption>
      <div ref={holder} />
    </figure>
  );
}

function dataOf(history: History, lines: Line[]): uPlot.AlignedData {
  return [history.times, ...lines.map((line) => history.series[line.name])] as uPlot.AlignedData;
}

function options(
  lines: Line[],
  theme: string,
  width: number,
  top: number | null,
  onCursor: (at: number | null) => void,
): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: resolved("var(--quiet)", theme),
    grid: { stroke: resolved("var(--line)", theme), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "charts" } },
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)] },
    scales: { y: { range: (_, __, most) => [0, top ?? Math.max(1, most * 1.1)] } },
    axes: [
      { ...axis, size: 22, gap: 4, space: 70, values: (_, times) => times.map(clock) },
      { ...axis, size: 38, gap: 4, space: 34, values: (_, marks) => marks.map(compact) },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.label,
        stroke: resolved(line.colour, theme),
        width: 1.5,
        points: { show: false },
      })),
    ],
  };
}

function clock(time: number): string {
  const at = new Date(time * 1000);
  const [hours, minutes, seconds] = [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) =>
    String(part).padStart(2, "0"),
  );
  return seconds === "00" ? `${hours}:${minutes}` : `${hours}:${minutes}:${seconds}`;
}
