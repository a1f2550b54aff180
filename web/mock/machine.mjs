/* Two nodes of two cards whose tenants preempt and wait: what `aliquot up --simulate 2x2x24GiB` would tell. */

const BUCKETS = 600;
const STEP = 0.1;
const MIB = 24576;

const TENANTS = [
  {
    key: "default/serve-llm-0",
    class: "online",
    dialect: "qgpu",
    node: 0,
    card: 0,
    memory: 8192,
    core: 40,
    period: 14,
    duty: 5,
  },
  {
    key: "default/train-resnet-0",
    class: "offline",
    dialect: "qgpu",
    node: 0,
    card: 0,
    memory: 10240,
    core: 60,
    greedy: true,
  },
  { key: "default/binpack-1-0", class: "normal", dialect: "gpushare", node: 0, card: 1, memory: 4096, core: null },
  { key: "default/binpack-1-1", class: "normal", dialect: "gpushare", node: 0, card: 1, memory: 4096, core: null },
  {
    key: "notebook-with-a-rather-long-name",
    class: "normal",
    dialect: "run",
    node: 0,
    card: 1,
    memory: 6144,
    core: 30,
  },
  {
    key: "team-a/t9k-train-7f9c5",
    class: "normal",
    dialect: "t9k",
    node: 1,
    card: 0,
    memory: MIB,
    core: 100,
    exclusive: true,
  },
];

const LACKS = {
  reason: "memory",
  text: "card 1 of node-0 has 10 GiB free, needs 12 GiB",
  nodes: 1,
  example: null,
  wanted: 12288,
  had: 10240,
  card: 1,
  node: "node-0",
};
const TAKEN = {
  reason: "exclusive",
  text: "card 0 of node-1 is in use (1 on it)",
  nodes: 1,
  example: null,
  had: 1,
  card: 0,
  node: "node-1",
};

export class Machine {
  constructor(idle) {
    this.tenants = idle ? [] : TENANTS;
    this.begun = Date.now() / 1000;
    this.told = this.begun;
  }

  online(tenant, time) {
    return Math.floor(time) % tenant.period < tenant.duty;
  }

  /** share of a tenant 0..1, and whether it is paused */
  at(tenant, time) {
    const peers = this.tenants.filter((each) => each.node === tenant.node && each.card === tenant.card);
    const server = peers.find((each) => each.class === "online");
    const wave = 0.9 + 0.1 * Math.sin(time * 3 + tenant.memory);
    if (tenant.class === "online") return this.online(tenant, time) ? [wave, 0] : [0, 0];
    if (tenant.class === "offline" && server && this.online(server, time)) return [0, 1];
    return [(wave * 0.99) / peers.filter((each) => each.class !== "online").length, 0];
  }

  timeline(node, now, buckets) {
    const until = Math.floor(now / STEP) * STEP;
    const cards = {};
    for (const card of [0, 1]) {
      const here = this.tenants.filter((each) => each.node === node && each.card === card);
      const tenants = here.map((tenant) => {
        const seen = Array.from({ length: buckets }, (_, at) => this.at(tenant, until - (buckets - at - 0.5) * STEP));
        return {
          key: tenant.key,
          class: tenant.class,
          shares: seen.map(([share]) => Math.round(share * 100)),
          paused: seen.map(([, paused]) => paused),
        };
      });
      const [by, of] = [here.find((each) => each.class === "online"), here.find((each) => each.class === "offline")];
      const preemptions = [];
      if (by && of)
        for (let at = Math.ceil(until - buckets * STEP); at <= until; at++)
          if (at % by.period === 0) preemptions.push({ at, by: by.key, of: of.key });
      cards[uuid(node, card)] = { tenants, preemptions };
    }
    return { until, step: STEP, buckets, cards };
  }

  nodes(now, buckets) {
    return [0, 1].map((node) => ({
      name: `node-${node}`,
      offers: ["qgpu", "t9k", "gpushare"],
      policy: node ? "fixed-share" : "burst-share",
      release_delay_seconds: node ? 0 : 0.1,
      trouble: [],
      notes: [],
      cards: [0, 1].map((card) => this.card(node, card, now)),
      timeline: this.timeline(node, now, buckets),
    }));
  }

  card(node, card, now) {
    const here = this.tenants.filter((each) => each.node === node && each.card === card);
    const sick = node === 1 && card === 1 && this.tenants.length > 0;
    return {
      index: card,
      uuid: uuid(node, card),
      model: "Simulated GPU",
      healthy: !sick,
      why_out: sick ? { code: "xid", text: "Xid 79, it fell off the bus", number: 79, detail: "Xid 79, it fell off the bus" } : null,
      memory_mib: MIB,
      memory_booked_mib: sum(here, "memory"),
      memory_used_mib: Math.round(sum(here, "memory") * 0.6),
      memory_unregistered_mib: 0,
      control: { code: "control-proven", text: "hardware (proven)" },
      core_booked: sum(
        here.filter((each) => !each.greedy),
        "core",
      ),
      greedy_booked: sum(
        here.filter((each) => each.greedy),
        "core",
      ),
      busy: here.reduce((all, each) => all + this.at(each, now)[0], 0),
      exclusive: here.some((each) => each.exclusive),
      tenants: here.map((each) => {
        const [share, paused] = this.at(each, now);
        return {
          key: each.key,
          class: each.class,
          dialect: each.dialect,
          memory_mib: each.memory,
          memory_used_mib: Math.round(each.memory * 0.6),
          core: each.core,
          greedy: !!each.greedy,
          exclusive: !!each.exclusive,
          share,
          state: paused ? "paused" : share ? "running" : "idle",
          preemptions: each.class === "offline" ? Math.floor((now - this.begun) / 14) : 0,
          paused_seconds: each.class === "offline" ? (now - this.begun) * 0.35 : 0,
          paused_by: paused ? (here.find((other) => other.class === "online")?.key ?? null) : null,
          parked_mib: 0,
          where: null,
          why_parked: null,
          latency_seconds: null,
          latency_missed_seconds: 0,
          together: null,
          moves: 0,
          users: null,
        };
      }),
    };
  }

  totals(now) {
    const cards = [0, 1].flatMap((node) => [0, 1].map((card) => this.card(node, card, now)));
    return {
      nodes: 2,
      cards: 4,
      cards_free: cards.filter((card) => card.healthy && !card.tenants.length).length,
      cards_out: cards.filter((card) => !card.healthy).length,
      memory_mib: MIB * 4,
      memory_booked_mib: sum(cards, "memory_booked_mib"),
      memory_used_mib: sum(cards, "memory_used_mib"),
      core: 400,
      core_booked: sum(cards, "core_booked"),
      busy: sum(cards, "busy") / 4,
      fragmentation: this.tenants.length ? 0.128 : 0,
      pods: Object.fromEntries(
        ["online", "offline", "normal"].map((kind) => [
          kind,
          this.tenants.filter((each) => each.class === kind).length,
        ]),
      ),
      waiting: this.waiting(now).count,
      troubled: 0,
    };
  }

  waiting() {
    if (!this.tenants.length) return { count: 0, pods: [] };
    const pod = (key, kind, text, request, reason) => ({
      key,
      class: kind,
      dialect: "gpushare",
      since: this.begun - 75,
      wants: { text, requests: [request] },
      reason,
    });
    return {
      count: 2,
      pods: [
        pod(
          "default/binpack-1-2",
          "normal",
          "12 GiB",
          { memory_mib: 12288 },
          {
            code: "no-room",
            text: `${LACKS.text}; 2 other cards have no room either`,
            count: 2,
            refusals: [LACKS],
          },
        ),
        pod(
          "batch-embed",
          "offline",
          "8 GiB, 50% on each of 2 cards",
          { count: 2, memory_mib: 8192, core: 50 },
          {
            code: "room-reserved",
            text: "room is reserved for default/binpack-1-2, which is first",
            name: "default/binpack-1-2",
          },
        ),
      ],
    };
  }

  bytes() {
    const pack = (of) =>
      Buffer.from([0, 1].flatMap((node) => [0, 1].map((card) => of(this.card(node, card, this.begun))))).toString(
        "base64",
      );
    return {
      memory: pack((card) => (200 * card.memory_booked_mib) / MIB),
      core: pack((card) => 2 * card.core_booked),
      class: pack((card) =>
        !card.healthy ? 6 : card.exclusive ? 5 : card.greedy_booked ? 4 : card.tenants.length ? 1 : 0,
      ),
    };
  }

  state() {
    const now = Date.now() / 1000;
    return {
      version: "0.6.0",
      kind: "machine",
      name: "workstation",
      simulated: "2x2x24GiB",
      now,
      priority: "binpack",
      leading: null,
      totals: this.totals(now),
      kinds: [
        {
          offers: ["qgpu", "t9k", "gpushare"],
          policy: "burst-share",
          model: "Simulated GPU",
          cards: 2,
          memory_mib: MIB,
        },
      ],
      nodes: { names: ["node-0", "node-1"], kind: [0, 0], cards: [2, 2], trouble: {} },
      cards: this.bytes(),
      waiting: this.waiting(),
      live: { nodes: this.nodes(now, BUCKETS) },
      history: this.history(600),
    };
  }

  tick() {
    const now = Date.now() / 1000;
    const buckets = Math.max(1, Math.round((now - this.told) / STEP));
    this.told = now;
    return {
      now,
      totals: this.totals(now),
      rows: [],
      cards: { memory: "", core: "", class: "" },
      trouble: null,
      waiting: null,
      point: { time: now, ...this.point(now) },
      live: { nodes: this.nodes(now, buckets) },
    };
  }

  point(time) {
    const wave = Math.sin(time / 60);
    return this.tenants.length
      ? {
          memory: 58,
          core: 50 + 6 * wave,
          busy: 70 + 12 * Math.sin(time / 13),
          fragmentation: 12.8 + 3 * wave,
          waiting: 2,
          online: 1,
          offline: 1,
          normal: 4,
        }
      : { memory: 0, core: 0, busy: 0, fragmentation: 0, waiting: 0, online: 0, offline: 0, normal: 0 };
  }

  history(seconds) {
    const step = seconds / 300;
    const now = Date.now() / 1000;
    const times = Array.from({ length: 300 }, (_, at) => now - (300 - at) * step);
    const points = times.map((time) => this.point(time));
    return {
      step,
      times,
      series: Object.fromEntries(Object.keys(points[0]).map((name) => [name, points.map((each) => each[name])])),
    };
  }

  node(name) {
    const now = Date.now() / 1000;
    return this.nodes(now, BUCKETS).find((each) => each.name === name) ?? null;
  }

  pod(key) {
    const tenant = this.tenants.find((each) => each.key === key);
    if (tenant)
      return {
        key,
        kind: tenant.dialect === "run" ? "run" : "pod",
        class: tenant.class,
        dialect: tenant.dialect,
        phase: "Running",
        node: `node-${tenant.node}`,
        cards: [
          {
            index: tenant.card,
            uuid: uuid(tenant.node, tenant.card),
            memory_mib: tenant.memory,
            core: tenant.core,
            greedy: !!tenant.greedy,
            exclusive: !!tenant.exclusive,
          },
        ],
        claims: [],
        containers: [{ name: "main", command: ["python", "train.py", "--epochs", "3", "--note", "it's long"] }],
        owner: tenant.dialect === "run" ? null : "StatefulSet/binpack-1",
        since: this.begun - 340,
        why: [
          { code: "requests", text: "Requests 4 GiB (gpushare).", dialect: "gpushare", wants: [{ memory_mib: 4096 }] },
          {
            code: "placed",
            text: "Card 1 of node-0: of the cards with room, the fullest (binpack).",
            node: "node-0",
            cards: [1],
          },
        ],
        refusals: [],
      };
    const waiter = this.waiting().pods.find((each) => each.key === key);
    return (
      waiter && {
        key,
        kind: "pod",
        class: waiter.class,
        dialect: waiter.dialect,
        phase: "Pending",
        node: null,
        cards: [],
        claims: [],
        containers: [{ name: "main", command: ["sleep", "inf"] }],
        owner: null,
        since: waiter.since,
        why: [
          {
            code: "requests",
            text: `Requests ${waiter.wants.text} (gpushare).`,
            dialect: "gpushare",
            wants: waiter.wants.requests,
          },
          { code: "queued", text: "Number 1 of 2 in the queue.", position: 1, of: 2 },
        ],
        refusals: [LACKS, TAKEN],
      }
    );
  }

  search(text, limit) {
    return {
      nodes: ["node-0", "node-1"].filter((name) => name.includes(text)).slice(0, limit),
      pods: this.tenants
        .filter((each) => each.key.includes(text))
        .map((each) => ({ key: each.key, node: `node-${each.node}`, class: each.class, phase: "Running" }))
        .slice(0, limit),
    };
  }
}

function uuid(node, card) {
  return `GPU-${node}${card}aa0000-1111-2222-3333-4444${node}555${card}666`;
}

function sum(all, name) {
  return all.reduce((total, each) => total + (each[name] ?? 0), 0);
}
