/* One card, as bars: its memory and its compute by tenant, promised against measured. */

import { tenantColour } from "../colour";
import type { Card, Tenant } from "../contract";
import { age, memory, memoryOf, percent, shortKey, shortUuid } from "../format";
import { awayOf, stateHint } from "../hint";
import { useShared } from "../hooks";
import { go } from "../route";
import type { Text } from "../text";
import { Sentence } from "./sentence";

export function CardView({ card }: { card: Card }) {
  const { text } = useShared();
  const [booked, all] = memoryOf(card.memory_booked_mib, card.memory_mib);
  const measured = card.tenants.some((tenant) => tenant.share !== null);
  const stated = card.tenants.some((tenant) => tenant.state !== null);
  return (
    <article class={card.healthy ? "card" : "card out"} aria-label={`${text.cardN(card.index)}, ${card.model}`}>
      <h3>
        <span class="index">{card.index}</span>
        <span class="model" title={card.uuid}>
          {card.model}
        </span>
        <code title={card.uuid}>{shortUuid(card.uuid)}</code>
        {card.busy !== null && (
          <span class="busy">
            {text.busy} <b>{percent(card.busy)}</b>
          </span>
        )}
      </h3>
      {card.memory_unregistered_mib > 0 && (
        <p class="note">{text.memoryUnregistered(memory(card.memory_unregistered_mib))}</p>
      )}
      {card.control && (
        <p class={card.control.code === "control-gate" ? "note" : "control"}>
          <Sentence of={card.control} />
        </p>
      )}
      {!card.healthy && <p class="why-out">{card.why_out ? <Sentence of={card.why_out} /> : text.outCard}</p>}
      <Bar
        name={text.memory}
        figure={`${booked} / ${all}`}
        pieces={card.tenants.map((tenant) => memoryPiece(tenant, card, text))}
        tall
      />
      <Bar
        name={text.compute}
        figure={`${text.promised} ${Math.round(card.core_booked)}%`}
        pieces={card.tenants.map((tenant) => promisedPiece(tenant, text))}
      />
      {measured && (
        <Bar
          name=""
          figure={`${text.measured} ${percent(sum(card.tenants.map((tenant) => tenant.share ?? 0)))}`}
          pieces={card.tenants.map((tenant) => measuredPiece(tenant, text))}
        />
      )}
      {card.tenants.length > 0 ? (
        <table class="tenants">
          <thead>
            <tr>
              <th>{text.tenants}</th>
              <th>{text.memory}</th>
              <th>{text.quota}</th>
              {measured && <th>{text.share}</th>}
              {stated && <th>{text.state}</th>}
            </tr>
          </thead>
          <tbody>
            {card.tenants.map((tenant) => (
              <TenantRow key={tenant.key} tenant={tenant} measured={measured} stated={stated} />
            ))}
          </tbody>
        </table>
      ) : (
        <p class="quiet">{card.healthy ? text.freeCard : ""}</p>
      )}
    </article>
  );
}

function TenantRow({ tenant, measured, stated }: { tenant: Tenant; measured: boolean; stated: boolean }) {
  const { text } = useShared();
  const [used, booked] =
    tenant.memory_used_mib === null
      ? ["", memory(tenant.memory_mib)]
      : memoryOf(tenant.memory_used_mib, tenant.memory_mib);
  const away = awayOf(tenant);
  return (
    <tr class={tenant.state === "paused" ? "paused" : ""}>
      <th scope="row">
        <TenantName tenant={tenant} users={tenant.users} />
        <small>
          <span class={`c-${tenant.class}`}>{text[tenant.class]}</span> · {dialectName(tenant.dialect, text)}
          {tenant.paused_by !== null && <b class="paused-by"> · {text.hasCard(shortKey(tenant.paused_by))}</b>}
          {tenant.together !== null && ` · ${text.together(tenant.together)}`}
          {tenant.latency_missed_seconds > 0 && ` · ${text.latencyMissed(age(tenant.latency_missed_seconds, text))}`}
        </small>
        {tenant.users !== null && <Users users={tenant.users} />}
      </th>
      <td title={text.memory}>
        {used && <>{used} / </>}
        {booked}
        {tenant.parked_mib > 0 && <small>{text.parked(memory(tenant.parked_mib))}</small>}
      </td>
      <td title={text.quota}>{quota(tenant, text)}</td>
      {measured && <td title={text.share}>{tenant.share === null ? "" : percent(tenant.share)}</td>}
      {stated && (
        <td class="state" title={stateHint(tenant, text)}>
          {away !== null && <span class="state-waiting">{text.residency[away] ?? away}</span>}
          {away === null && tenant.state !== null && (
            <span class={`state-${tenant.state}`}>{text.states[tenant.state] ?? tenant.state}</span>
          )}
        </td>
      )}
    </tr>
  );
}

/** Opens the Pod or run. A ResourceClaim has no page of its own, and may be called like a Pod: its users have theirs. */
export function TenantName({ tenant, users }: { tenant: Pick<Tenant, "key" | "class">; users: string[] | null }) {
  const name = (
    <>
      <Swatch tenant={tenant} /> <span>{shortKey(tenant.key)}</span>
    </>
  );
  if (users !== null)
    return (
      <span class="claim" title={tenant.key}>
        {name}
      </span>
    );
  return (
    <button type="button" class="link" onClick={() => go({ pod: tenant.key })} title={tenant.key}>
      {name}
    </button>
  );
}

function Users({ users }: { users: string[] }) {
  const { text } = useShared();
  return (
    <small class="users">
      {users.length === 0 ? text.unused : `${text.usedBy} `}
      {users.map((user) => (
        <button type="button" class="link" key={user} onClick={() => go({ pod: user })} title={user}>
          {shortKey(user)}
        </button>
      ))}
    </small>
  );
}

export function Swatch({ tenant }: { tenant: Pick<Tenant, "key" | "class"> }) {
  return <i class="swatch" style={{ background: tenantColour(tenant.key, tenant.class) }} aria-hidden="true" />;
}

/** A run of one machine has no dialect, nor has a ResourceClaim. */
export function dialectName(dialect: string, text: Text): string {
  return dialect === "run" ? text.run : dialect === "claims" ? text.claim : dialect;
}

export function quota(share: { core: number | null; greedy: boolean; exclusive: boolean }, text: Text): string {
  if (share.exclusive) return text.exclusive;
  if (share.core === null) return "–";
  return share.greedy ? `≤${Math.round(share.core)}%` : `${Math.round(share.core)}%`;
}

interface Piece {
  key: string;
  colour: string;
  /** Of the bar, 0..1. */
  size: number;
  /** Of this piece, 0..1: drawn full; the rest of it pale. */
  filled: number;
  paused: boolean;
  label: string;
}

function memoryPiece(tenant: Tenant, card: Card, text: Text): Piece {
  const used = tenant.memory_used_mib;
  return {
    key: tenant.key,
    colour: tenantColour(tenant.key, tenant.class),
    size: tenant.memory_mib / Math.max(1, card.memory_mib),
    filled: used === null ? 1 : used / Math.max(1, tenant.memory_mib),
    paused: false,
    label: [
      `${tenant.key}: ${memory(tenant.memory_mib)} ${text.booked}`,
      ...(used === null ? [] : [`${memory(used)} ${text.inUse}`]),
    ].join(", "),
  };
}

/** Offline quotas are of compute that others leave, and do not add up with theirs: pale. */
function promisedPiece(tenant: Tenant, text: Text): Piece {
  const size = tenant.exclusive ? 1 : (tenant.core ?? 0) / 100;
  return {
    key: tenant.key,
    colour: tenantColour(tenant.key, tenant.class),
    size,
    filled: tenant.greedy ? 0 : 1,
    paused: false,
    label: `${tenant.key}: ${text.promised} ${quota(tenant, text)}${tenant.greedy ? ` ${text.greedy}` : ""}`,
  };
}

function measuredPiece(tenant: Tenant, text: Text): Piece {
  return {
    key: tenant.key,
    colour: tenantColour(tenant.key, tenant.class),
    size: tenant.share ?? 0,
    filled: 1,
    paused: tenant.state === "paused",
    label: `${tenant.key}: ${text.measured} ${percent(tenant.share ?? 0, 1)}`,
  };
}

function Bar({
  name,
  figure,
  pieces,
  tall = false,
}: {
  name: string;
  figure: string;
  pieces: Piece[];
  tall?: boolean;
}) {
  const total = sum(pieces.map((piece) => piece.size));
  const scale = total > 1 ? 100 / total : 100; // more promised than there is: all of it is shown, the bar is full
  return (
    <div class={tall ? "bar tall" : "bar"}>
      <span class="name">{name}</span>
      <span class="track" role="img" aria-label={`${name} ${figure}; ${pieces.map((piece) => piece.label).join("; ")}`}>
        {pieces.map((piece) => (
          <i
            key={piece.key}
            class={piece.paused ? "piece paused" : "piece"}
            title={piece.label}
            style={{ width: `${piece.size * scale}%`, "--c": piece.colour }}
          >
            <i style={{ width: `${Math.min(1, piece.filled) * 100}%` }} />
          </i>
        ))}
      </span>
      <span class="figure-text">{figure}</span>
    </div>
  );
}

function sum(values: number[]): number {
  return values.reduce((all, value) => all + value, 0);
}
