/* A cluster of made-up nodes whose cards change a little every second. */

const KINDS = [
  { offers: ["qgpu"], policy: "burst-share", model: "A100-SXM4-80GB", cards: 8, memory_mib: 81920 },
  { offers: ["t9k"], policy: "fixed-share", model: "A30", cards: 8, memory_mib: 24576 },
  { offers: ["gpushare", "qgpu"], policy: "best-effort", model: "Tesla T4", cards: 8, memory_mib: 16384 },
];
const WANTS = { text: "40 GiB, 50%", requests: [{ memory_mib: 40960, core: 50 }] };
const FULL = {
  reason: "memory",
  text: "GPU memory: needs 40 GiB per card; no card has that much free",
  nodes: 3120,
  example: "node-0",
  wanted: 40960,
};
const SMALL = {
  reason: "memory",
  text: "GPU memory: needs 40 GiB per card; no card is that large",
  nodes: 1500,
  example: "node-5",
  never: true,
  wanted: 40960,
};
const REASONS = [
  {
    code: "no-fitting-node",
    text: `fits none of 4,620 nodes: 3,120: ${FULL.text}; 1,500: ${SMALL.text}`,
    count: 4620,
    refusals: [FULL, SMALL],
  },
  {
    code: "fits-on",
    text: "its GPU request fits on node-17: kube-scheduler has another reason, or tries it soon",
    node: "node-17",
  },
  { code: "not-tried", text: "kube-scheduler has not tried it yet" },
  {
    code: "invalid-pod",
    text: "invalid Pod: tke.cloud.tencent.com/qgpu-core: 7 is not allowed: a multiple of 5",
    name: "tke.cloud.tencent.com/qgpu-core",
    detail: "tke.cloud.tencent.com/qgpu-core: 7 is not allowed: a multiple of 5",
  },
];

export class Cluster {
  constructor(nodes, cards) {
    this.cards = cards;
    this.names = Array.from({ length: nodes }, (_, at) => `node-${at}`);
    this.kind = this.names.map((_, at) => (at % 10 < 5 ? 0 : at % 10 < 8 ? 1 : 2));
    this.trouble = Object.fromEntries(
      this.names
        .map((_, at) => at)
        .filter((at) => at % 211 === 7)
        .map((at) => [at, [at % 2 ? { code: "cordoned", text: "cordoned" } : { code: "not-ready", text: "not ready" }]]),
    );
    const count = nodes * cards;
    this.columns = { memory: Buffer.alloc(count), core: Buffer.alloc(count), class: Buffer.alloc(count) };
    for (let at = 0; at < count; at++) this.change(at);
  }

  change(card) {
    const chance = Math.random();
    const kind =
      chance < 0.12
        ? 0
        : chance < 0.45
          ? 1
          : chance < 0.6
            ? 2
            : chance < 0.78
              ? 3
              : chance < 0.9
                ? 4
                : chance < 0.997
                  ? 5
                  : 6;
    this.columns.class[card] = kind;
    this.columns.memory[card] = kind === 0 || kind === 6 ? 0 : kind === 5 ? 200 : 30 + Math.random() * 170;
    this.columns.core[card] = kind === 0 || kind === 6 ? 0 : kind === 5 ? 200 : 20 + Math.random() * 180;
  }

  bytes(rows) {
    const pick = (column) =>
      (rows
        ? Buffer.concat(rows.map((row) => column.subarray(row * this.cards, (row + 1) * this.cards)))
        : column
      ).toString("base64");
    return { memory: pick(this.columns.memory), core: pick(this.columns.core), class: pick(this.columns.class) };
  }

  totals() {
    const { memory, core, class: kinds } = this.columns;
    const cards = memory.length;
    const part = (column) => column.reduce((sum, each) => sum + each, 0) / (200 * cards);
    return {
      nodes: this.names.length,
      cards,
      cards_free: kinds.filter((each) => each === 0).length,
      cards_out: kinds.filter((each) => each === 6).length,
      memory_mib: cards * 40960,
      memory_booked_mib: Math.round(cards * 40960 * part(memory)),
      memory_used_mib: null,
      core: cards * 100,
      core_booked: cards * 100 * part(core),
      busy: null,
      fragmentation: 0.083,
      pods: { online: 11205, offline: 9876, normal: 24310 },
      waiting: 412,
      troubled: Object.keys(this.trouble).length,
    };
  }

  waiting() {
    const now = Date.now() / 1000;
    const pods = Array.from({ length: 200 }, (_, at) => ({
      key: `team-${at % 7}/train-${at}`,
      class: ["normal", "offline", "online"][at % 3],
      dialect: "qgpu",
      since: now - 30 - at * 7,
      reason: REASONS[(at * at) % 4],
      wants: WANTS,
    }));
    return { count: 412, pods };
  }

  state() {
    return {
      version: "0.6.0",
      kind: "cluster",
      name: "prod-east",
      simulated: null,
      now: Date.now() / 1000,
      priority: "binpack",
      leading: true,
      totals: this.totals(),
      kinds: KINDS,
      nodes: { names: this.names, kind: this.kind, cards: this.names.map(() => this.cards), trouble: this.trouble },
      cards: this.bytes(null),
      waiting: this.waiting(),
      live: null,
      history: this.history(600),
    };
  }

  tick() {
    const rows = [...new Set(Array.from({ length: 120 }, () => Math.floor(Math.random() * this.names.length)))];
    for (const row of rows) this.change(row * this.cards + Math.floor(Math.random() * this.cards));
    const time = Date.now() / 1000;
    return {
      now: time,
      totals: this.totals(),
      rows,
      cards: this.bytes(rows),
      trouble: null,
      waiting: null,
      point: { time, ...this.point(time) },
      live: null,
    };
  }

  point(time) {
    const wave = Math.sin(time / 90);
    return {
      memory: 62 + 4 * wave,
      core: 58 + 5 * wave,
      busy: null,
      fragmentation: 8.3 + wave,
      waiting: Math.round(412 + 40 * wave),
      online: 11205,
      offline: 9876,
      normal: 24310,
    };
  }

  history(seconds) {
    const step = seconds / 300;
    const times = Array.from({ length: 300 }, (_, at) => Date.now() / 1000 - (300 - at) * step);
    const points = times.map((time) => this.point(time));
    return {
      step,
      times,
      series: Object.fromEntries(Object.keys(points[0]).map((name) => [name, points.map((each) => each[name])])),
    };
  }

  node(name) {
    const row = this.names.indexOf(name);
    if (row < 0) return null;
    const kind = KINDS[this.kind[row]];
    const cards = Array.from({ length: this.cards }, (_, index) => {
      const at = row * this.cards + index;
      const state = this.columns.class[at];
      const memory = Math.round((this.columns.memory[at] / 200) * kind.memory_mib);
      const core = this.columns.core[at] / 2;
      const classes =
        { 1: ["normal", "normal"], 2: ["offline"], 3: ["online"], 4: ["online", "offline"], 5: ["normal"] }[state] ??
        [];
      return {
        index,
        uuid: `GPU-${String(at).padStart(8, "0")}-aaaa-bbbb`,
        model: kind.model,
        healthy: state !== 6,
        why_out:
          state === 6
            ? { code: "out", text: "unhealthy, taken out by a ConfigMap, or the node's agent is away" }
            : null,
        memory_mib: kind.memory_mib,
        memory_booked_mib: memory,
        memory_used_mib: null,
        core_booked: core,
        greedy_booked: 0,
        memory_unregistered_mib: 0,
        control: null,
        busy: null,
        exclusive: state === 5,
        tenants: classes.map((each, nth) => ({
          key: `team-${at % 7}/job-${at}-${nth}`,
          class: each,
          dialect: kind.offers[0],
          memory_mib: Math.round(memory / classes.length),
          memory_used_mib: null,
          core: core / classes.length,
          greedy: each === "offline",
          exclusive: state === 5,
          share: null,
          state: null,
          preemptions: null,
          paused_seconds: null,
          paused_by: null,
          parked_mib: 0,
          where: null,
          why_parked: null,
          latency_seconds: null,
          latency_missed_seconds: 0,
          together: null,
          moves: 0,
          users: null,
        })),
      };
    });
    return {
      name,
      offers: kind.offers,
      policy: kind.policy,
      release_delay_seconds: null,
      trouble: this.trouble[row] ?? [],
      notes: [],
      cards,
      timeline: null,
    };
  }

  pod(key) {
    const pending = /train-/.test(key);
    return {
      key,
      kind: "pod",
      class: "normal",
      dialect: "qgpu",
      phase: pending ? "Pending" : "Running",
      node: pending ? null : "node-3",
      cards: pending
        ? []
        : [{ index: 2, uuid: "GPU-00000026-aaaa-bbbb", memory_mib: 40960, core: 50, greedy: false, exclusive: false }],
      claims: [],
      containers: [{ name: "main", command: ["python", "train.py"] }],
      owner: "Job/train",
      since: Date.now() / 1000 - 4000,
      why: [{ code: "requests", text: "Requests 40 GiB, 50% (qgpu).", dialect: "qgpu", wants: WANTS.requests }],
      refusals: pending
        ? [
            FULL,
            SMALL,
            { reason: "unschedulable", text: "the node is cordoned", nodes: 24, example: "node-7" },
          ]
        : [],
    };
  }

  search(text, limit) {
    return {
      nodes: this.names.filter((name) => name.includes(text)).slice(0, limit),
      pods: this.waiting()
        .pods.filter((pod) => pod.key.includes(text))
        .map((pod) => ({ key: pod.key, node: null, class: pod.class, phase: "Pending" }))
        .slice(0, limit),
    };
  }
}
