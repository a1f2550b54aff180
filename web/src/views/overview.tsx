/* Many nodes: kinds summed up, a map of all cards, filters. */

import { useState } from "preact/hooks";

import { grouped, memory, percent } from "../format";
import { kindSums, matching, type Filter } from "../heat";
import { useShared } from "../hooks";
import { dialectName } from "./card";
import { HeatMap, type ColourBy } from "./heatmap";

const FILTERS: Filter[] = ["all", "free", "room", "trouble"];
const COLOURS: ColourBy[] = ["class", "memory", "core"];

export function Overview() {
  const { world, text } = useShared();
  const [filter, setFilter] = useState<Filter>("all");
  const [colourBy, setColourBy] = useState<ColourBy>("class");
  const [kind, setKind] = useState<number | null>(null);
  const rows = matching(world, filter, kind);
  const filters = { all: text.showAll, free: text.showFree, room: text.showRoom, trouble: text.showTrouble };
  const colours = { class: text.byClass, memory: text.byMemory, core: text.byCompute };
  return (
    <>
      <section class="box">
        <h2>{text.kinds}</h2>
        <Kinds chosen={kind} onChoose={(index) => setKind(index === kind ? null : index)} />
      </section>
      <section class="box">
        <div class="head">
          <h2>{text.heat}</h2>
          <small>{text.matching(grouped(rows.length), grouped(world.state.nodes.names.length))}</small>
          <Choice name={text.show} options={FILTERS} labels={filters} value={filter} onChange={setFilter} />
          <Choice name={text.colourBy} options={COLOURS} labels={colours} value={colourBy} onChange={setColourBy} />
        </div>
        {rows.length > 0 ? <HeatMap rows={rows} colourBy={colourBy} /> : <p class="quiet">{text.nothingMatches}</p>}
        {colourBy === "class" ? <Legend /> : <Scale of={colourBy} />}
      </section>
    </>
  );
}

interface ChoiceProps<T extends string> {
  name: string;
  options: readonly T[];
  labels: Record<T, string>;
  value: T;
  onChange: (value: T) => void;
}

export function Choice<T extends string>({ name, options, labels, value, onChange }: ChoiceProps<T>) {
  return (
    <span class="choice" role="group" aria-label={name}>
      <span>{name}</span>
      {options.map((option) => (
        <button type="button" key={option} aria-pressed={option === value} onClick={() => onChange(option)}>
          {labels[option]}
        </button>
      ))}
    </span>
  );
}

function Kinds({ chosen, onChoose }: { chosen: number | null; onChoose: (index: number) => void }) {
  const { world, text } = useShared();
  return (
    <div class="wide">
      <table class="kinds">
        <thead>
          <tr>
            <th>{text.model}</th>
            <th>{text.policy}</th>
            <th>{text.offers}</th>
            <th class="n">{text.nodesColumn}</th>
            <th class="n">{text.cardsColumn}</th>
            <th class="n">{text.freeCard}</th>
            <th>{text.memoryBooked}</th>
            <th>{text.computeBooked}</th>
          </tr>
        </thead>
        <tbody>
          {kindSums(world).map((sum) => (
            <tr key={sum.index} class={sum.index === chosen ? "chosen" : ""}>
              <th scope="row">
                <button
                  type="button"
                  class="link"
                  aria-pressed={sum.index === chosen}
                  title={text.kindFilter}
                  onClick={() => onChoose(sum.index)}
                >
                  {sum.kind.cards}× {sum.kind.model} <small>{memory(sum.kind.memory_mib)}</small>
                </button>
              </th>
              <td title={text.policies[sum.kind.policy]}>{sum.kind.policy}</td>
              <td>{sum.kind.offers.map((offer) => dialectName(offer, text)).join(", ")}</td>
              <td class="n">{grouped(sum.nodes)}</td>
              <td class="n">
                {grouped(sum.cards)}
                {sum.out > 0 && <b class="bad"> −{grouped(sum.out)}</b>}
              </td>
              <td class="n">{grouped(sum.free)}</td>
              <td>
                <Meter value={sum.memory} measure="memory" />
              </td>
              <td>
                <Meter value={sum.core} measure="compute" />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Meter({ value, measure }: { value: number; measure: string }) {
  return (
    <span class="meter">
      <i>
        <i class={`m-${measure}`} style={{ width: `${Math.min(1, value) * 100}%` }} />
      </i>
      <span>{percent(value)}</span>
    </span>
  );
}

export function Legend() {
  const { text } = useShared();
  return (
    <ul class="legend">
      {(["free", "normal", "offline", "online", "mixed", "whole", "out"] as const).map((name) => (
        <li key={name}>
          <i class={`cell ${name}`} /> {{ ...text, free: text.freeCard, out: text.outCard }[name]}
        </li>
      ))}
      <li class="paler">
        <i class="cell p-35" />
        <i class="cell p-70" />
        <i class="cell normal" /> {text.paler}
      </li>
    </ul>
  );
}

function Scale({ of }: { of: "memory" | "core" }) {
  const { text } = useShared();
  return (
    <ul class="legend">
      <li>
        0% <i class={`scale ${of}`} /> 100% {of === "memory" ? text.memoryBooked : text.computeBooked}
      </li>
      <li>
        <i class="cell out" /> {text.outCard}
      </li>
    </ul>
  );
}
