/* One Pod, at the side: where it is and why, its cards, its containers, and what refused it. */

import { useEffect, useRef } from "preact/hooks";

import type { Message, Pod } from "../contract";
import { age, grouped, memory, shell, shortUuid } from "../format";
import { useAsked, useShared } from "../hooks";
import { go } from "../route";
import { dialectName, quota } from "./card";
import { Refusal, Sentence } from "./sentence";

const EVERY = 2000;

export function Panel({ name }: { name: string }) {
  const { text } = useShared();
  const answer = useAsked<Pod>(`pods/${encodeURIComponent(name)}`, EVERY);
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    panel.current?.focus();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <div class="panel" ref={panel} tabIndex={-1} role="dialog" aria-label={`${text.pod} ${name}`}>
      <div class="panel-head">
        <h2>{name}</h2>
        <button type="button" onClick={() => go({ pod: null })} aria-label={text.close} title={`${text.close} (Esc)`}>
          ✕
        </button>
      </div>
      {answer.is === "here" && <PodView pod={answer.value} />}
      {answer.is === "gone" && <p class="quiet">{text.gone(name)}</p>}
      {answer.is === "failed" && <p class="quiet">{text.notAnswered}</p>}
      {answer.is === "loading" && <p class="quiet">{text.loading}</p>}
    </div>
  );
}

function PodView({ pod }: { pod: Pod }) {
  const { world, text } = useShared();
  return (
    <>
      <p class="chips">
        <span class={`chip class-${pod.class}`}>{text[pod.class]}</span>
        <span class="chip">{text.phases[pod.phase] ?? pod.phase}</span>
        {(pod.kind === "run" || pod.dialect !== null) && (
          <span class="chip">{pod.kind === "run" ? text.run : dialectName(pod.dialect ?? "", text)}</span>
        )}
        {pod.claims.map((claim) => (
          <span class="chip" key={claim}>
            {claim}
          </span>
        ))}
        {pod.since !== null && <span class="chip">{age(world.state.now - pod.since, text)}</span>}
        {pod.owner !== null && <span class="chip">{pod.owner}</span>}
      </p>
      <h3>{text.where}</h3>
      {pod.node === null ? (
        <p>{text.nowhere}</p>
      ) : (
        <button type="button" class="link" onClick={() => go({ node: pod.node, pod: pod.key })}>
          {pod.node}
        </button>
      )}
      {pod.cards.length > 0 && (
        <table>
          <tbody>
            {pod.cards.map((card) => (
              <tr key={card.uuid}>
                <th scope="row">{text.cardN(card.index)}</th>
                <td>
                  <code title={card.uuid}>{shortUuid(card.uuid)}</code>
                </td>
                <td class="n">{memory(card.memory_mib)}</td>
                <td class="n">{quota(card, text)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Sentences title={text.why} all={pod.why} />
      {pod.refusals.length > 0 && (
        <>
          <h3>{text.refusals}</h3>
          <ul class="refusals">
            {pod.refusals.map((refusal) => (
              <li key={refusal.text}>
                <Refusal of={refusal} />
                {refusal.example !== null && (
                  <small>
                    {refusal.nodes === 1
                      ? text.refusalNode(refusal.example)
                      : text.refusalNodes(grouped(refusal.nodes), refusal.example)}
                  </small>
                )}
              </li>
            ))}
          </ul>
        </>
      )}
      {pod.containers.length > 0 && <h3>{text.containers}</h3>}
      {pod.containers.map((container) => (
        <div class="container" key={container.name}>
          <b>{container.name}</b>
          {container.command.length > 0 && <pre>{shell(container.command)}</pre>}
        </div>
      ))}
    </>
  );
}

function Sentences({ title, all }: { title: string; all: Message[] }) {
  if (all.length === 0) return null;
  return (
    <>
      <h3>{title}</h3>
      <ul>
        {all.map((message) => (
          <li key={message.text}>
            <Sentence of={message} />
          </li>
        ))}
      </ul>
    </>
  );
}
