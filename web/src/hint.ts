/* What is said of a tenant's state where the pointer rests on it. */

import type { Tenant, Where } from "./contract";
import { age, delay } from "./format";
import type { Text } from "./text";

/** Where its memory is, if that is not on the card. */
export function awayOf(tenant: Tenant): Where | null {
  return tenant.where === "resident" ? null : tenant.where;
}

export function stateHint(tenant: Tenant, text: Text): string {
  const told = [
    tenant.paused_by === null ? "" : text.pausedBy(tenant.paused_by),
    tenant.paused_seconds ? text.pausedFor(age(tenant.paused_seconds, text)) : "",
    tenant.why_parked === null ? "" : text.whyParked[tenant.why_parked] ?? tenant.why_parked,
    tenant.moves ? text.moves(tenant.moves) : "",
    tenant.latency_seconds === null ? "" : text.acceptsLatency(delay(tenant.latency_seconds)),
  ];
  return told.filter(Boolean).join(", ");
}
