/* The server's sentences in Chinese. A code without a sentence does not compile. */

import type { Message, MessageCode, Reason, Refused, RequestStatus } from "../contract";
import { memory, memoryAtMost } from "../format";
import type { Words } from "./words";

const percent = (milli: number | undefined): string => `${(milli ?? 0) / 10}%`;
const cpus = (milli: number | undefined): string => `${(milli ?? 0) / 1000}`;
const mib = (amount: number | undefined): string => memory(amount ?? 0);
const atMost = (amount: number | undefined): string => memoryAtMost(amount ?? 0);

/** Of one card, or of the nodes that say so. */
function amount(
  refused: Refused,
  what: string,
  show: (value: number | undefined) => string,
  had: (value: number | undefined) => string = show,
): string {
  const wanted = refused.percent === undefined ? show(refused.wanted) : `${refused.percent}%`;
  if (refused.card === undefined)
    return `每卡需要${what} ${wanted}，${refused.never ? "没有这么大的卡" : "没有卡剩余这么多"}`;
  return `${refused.never ? "共有" : "剩余"}${what} ${had(refused.had)}，需要 ${wanted}`;
}

const REASONS: Record<Reason, (refused: Refused) => string> = {
  memory: (refused) => amount(refused, "显存", mib, atMost),
  core: (refused) => amount(refused, "算力", percent),
  "core-greedy": (refused) => amount(refused, "离线算力", percent),
  "host-pool": ({ card, had, wanted }) =>
    card === undefined ? "主机内存池容不下超出显存的部分" : `显存已订满，主机内存池剩余 ${atMost(had)}，需要 ${mib(wanted)}`,
  slices: ({ card, never }) =>
    never ? "一张卡上需要的份数超过上限" : card === undefined ? "每张卡的共享数都已达到上限" : "共享数已达到上限",
  exclusive: ({ card, had, own }) =>
    card !== undefined ? `正在使用（${had ?? 0} 个租户）` : own ? "需要整卡，但每张卡都在使用" : "GPU 被其他 Pod 整卡独占",
  health: ({ card }) => (card === undefined ? "合适的 GPU 异常或已移除，或者节点的 agent 暂时不在" : "异常或已移除"),
  withheld: ({ card }) =>
    card === undefined ? "合适的 GPU 被其他设备插件的 Pod 占用，或者处于 MIG 模式" : "被其他设备插件的 Pod 占用，或者处于 MIG 模式",
  model: () => "需要其他型号或 UUID 的 GPU",
  cards: ({ wanted, never }) =>
    (wanted ?? 0) <= 1 ? "节点上没有 GPU" : `单个节点上需要 ${wanted} 张 GPU，${never ? "该节点没有这么多" : "空闲的不够"}`,
  containers: () => "每个容器单独放得下，合在一起放不下",
  mode: ({ dialect }) => `节点没有为 ${dialect ?? ""} 的 Pod 启用`,
  "other-plugin": () => "节点的 GPU 由其他设备插件或 DRA 驱动分配；节点所有者可用标签 aliquot.dev/share-cards-with-other-plugins=true 共享",
  together: () => "节点的 agent 没有启用并排运行（注解 aliquot.dev/together）：需要 chart 值 agent.together.enabled=true，并且节点上有 nvidia-cuda-mps-control 和 CDI（见 agent 的状态），或去掉该注解",
  mixed: () => "节点不允许在线与离线 Pod 混部",
  "qgpu-node": () => "qGPU 节点不提供整卡",
  "whole-node": ({ own }) => (own ? "需要整个节点，但节点上有其他 Pod" : "另一个 Pod 独占整个节点"),
  cpu: ({ wanted, never }) => `需要 ${cpus(wanted)} 核 CPU，${never ? "节点没有这么多" : "剩余不足"}`,
  "host-memory": ({ wanted, never }) => `需要内存 ${mib(wanted)}，${never ? "节点没有这么多" : "剩余不足"}`,
  "invalid-node": () => "节点的配置无效",
  "unknown-node": () => "调度器还没有见到该节点",
  "invalid-pod": () => "Pod 的配置无效",
  group: ({ had, wanted }) =>
    wanted === undefined ? "所属的 PodGroup 还在等待足够的成员有位置" : `所属的 PodGroup 需要 ${wanted} 个成员同时有位置，目前 ${had ?? 0} 个`,
  unschedulable: () => "节点已封锁",
  "not-ready": () => "节点未就绪",
  taint: () => "Pod 不容忍该节点的污点",
  selector: () => "Pod 要求其他节点",
};

function refused(from: Refused): string {
  const place = from.card === undefined ? "" : `${from.node === undefined ? "" : `${from.node} `}卡 ${from.card}：`;
  // Of a newer agent: the English sentence, which names the card itself.
  return Object.hasOwn(REASONS, from.reason) ? place + REASONS[from.reason](from) : from.text;
}

function request({ count = 1, whole, node, memory_mib, memory_percent, core, offline }: RequestStatus): string {
  if (node) return "整个节点";
  if (whole) return count === null ? "节点的全部卡" : `${count} 张整卡`;
  const parts = [
    ...(memory_percent ? [`${memory_percent}% 显存`] : []),
    ...(memory_mib ? [memory(memory_mib)] : []),
    ...(core === undefined ? [] : [`${core}%${offline ? " 离线" : ""}`]),
  ];
  const cards = count === 1 ? "" : count === null ? "，节点的每张卡" : `，${count} 张卡各一份`;
  return (parts.join("、") || "一部分") + cards;
}

const requests = (all: readonly RequestStatus[] = []): string => all.map(request).join(" + ");

function promised(wants: readonly RequestStatus[], count = 1, of = "", policy = ""): string {
  if (wants.every((want) => want.whole)) return `承诺 ${count} 张整卡`;
  const sizes = [...new Set(wants.map((want) => memory(want.memory_mib ?? 0)))].join(" + ");
  return `承诺 ${count === 1 ? "" : `${count} 张卡各 `}${sizes}，以及${computePromised(wants[0]?.core, of, policy)}`;
}

function computePromised(core: number | null | undefined, of: string, policy: string): string {
  if (of === "online") return "有任务时的全部算力，先于离线任务";
  const left = of === "offline" ? "在线任务" : "";
  if (policy === "best-effort") {
    const booked = core == null ? "" : `；${core}% 只用于登记`;
    return `${left && `${left}余下的`}算力的均等部分（${policy}${booked}）`;
  }
  if (core == null) return `配额余下的一部分算力（${policy}）`;
  const exact = policy === "fixed-share" ? "，不会更多" : "";
  const least = policy === "burst-share" ? "至少 " : "";
  return `${left && `${left}和其他配额余下的`}算力的${least}${core}%${exact}（${policy}）`;
}

const process = (number: number | undefined): string => (number === undefined ? "某进程" : `进程 ${number}`);

const PRIORITIES: Record<string, string> = {
  binpack: "有余量的节点和卡中最满的",
  spread: "先选没有同一属主 Pod 的卡，再选空卡，再选平均每卡 Pod 最少的节点",
  fgd: "对后续 Pod 造成碎片最少的位置",
  dense: "剩余部分对后续 Pod 价值最高的位置",
  online: "先选没有同一属主 Pod 的卡，再选没有离线 Pod 的卡，再选空卡",
  offline: "有余量的卡中最满的，先选没有在线 Pod 的",
  "whole-node": "空节点中最小的",
};
const POLICIES: Record<string, string> = {
  "best-effort": "有任务的租户平分卡",
  "fixed-share": "每个租户不超过自己的配额",
  "burst-share": "每个租户至少有自己的配额，加上其他租户空闲的部分",
};

function groupWaits({ name, names = [], of = 0, count = 0, number = 0, more, wants }: Message): string {
  const role = names.length ? `${names[0]} 角色的 ` : "";
  const has = [...(count ? [`${count} 个已有位置`] : []), ...(number ? [`${number} 个现在放得下`] : [])].join("，") || "目前一个也没有";
  const missing = Math.max(1, of - count - number);
  const lacks = more ? `还有 ${more} 个 Pod 没有创建` : `还缺 ${missing} 个成员的余量${wants ? `（${requests(wants)}）` : ""}`;
  return `PodGroup ${name} 需要 ${role}${of} 个成员同时有位置：${has}，${lacks}`;
}

const MESSAGES: Record<MessageCode, (message: Message) => string> = {
  "no-room": ({ refusals = [], count = 0 }) =>
    (refusals.map(refused).join("，并且") || "没有余量") + (count ? `；另外 ${count} 张卡也没有余量` : ""),
  "room-reserved": ({ name }) => `余量留给排在最前的 ${name}`,
  queued: ({ position, of }) => `排在第 ${position} 位，共 ${of} 个`,
  "no-fitting-node": ({ count, refusals = [], more }) =>
    `${count} 个节点都不合适：` +
    [...refusals.map((refusal) => `${refusal.nodes} 个${refused(refusal)}`), ...(more ? [`还有 ${more} 种原因`] : [])].join("；"),
  "no-node": () => "没有节点",
  "fits-on": ({ node }) => `所需的 GPU 在 ${node} 上放得下：kube-scheduler 有其他原因，或即将重试`,
  "not-tried": () => "kube-scheduler 还没有尝试",
  tried: () => "kube-scheduler 已尝试，没有找到节点",
  working: () => "正在查找原因",
  "group-waits": (message) => groupWaits(message),
  "group-pauses": ({ name, of, count, number }) =>
    `PodGroup ${name} 需要 ${of} 个成员同时有位置，上次只有 ${count ?? 0} 个成员来到预留的位置，因此 ${number} 秒内不再预留；其他成员的事件说明了原因`,
  "group-finished": ({ name }) => `PodGroup ${name} 已结束（spec.finished），不再启动新成员`,
  "group-invalid": ({ name }) => `PodGroup ${name} 的配置无效`,
  "claim-waits": ({ name = "" }) => `ResourceClaim ${name} 还没有卡：kube-scheduler 放置使用它的 Pod 时才选卡`,
  "claim-missing": ({ name = "" }) =>
    `ResourceClaim ${name} 不存在：请创建它或它的 ResourceClaimTemplate，或者修改 spec.resourceClaims`,
  "claim-nowhere": () => "没有节点用 ResourceClaim 分配卡；给节点打标签 aliquot.dev/dra=true，见 docs/dra.md",
  "scheduler-said": () => "kube-scheduler 上次给出的原因：",
  "invalid-pod": ({ name }) => (name === undefined ? "Pod 的配置无效" : `Pod 的配置无效：${name}`),
  requests: ({ wants, dialect }) => `申请 ${requests(wants)}（${dialect === "claims" ? "资源申领" : dialect === "run" ? "运行" : dialect}）`,
  promised: ({ wants = [], count, names = [] }) => promised(wants, count, names[0], names[1]),
  paused: ({ card, name, number = 0 }) => `暂停：${name} 正在使用卡 ${card}。在线任务累计占用了它 ${number} 秒`,
  "claim-holds": ({ name = "", node = "", cards = [], names = [] }) =>
    `ResourceClaim ${name} 占有 ${node} 的卡 ${cards.join("、")}；${names.length ? `使用者：${names.join("、")}` : "目前没有 Pod 使用"}`,
  placed: ({ cards = [], node }) =>
    `${node === undefined ? "" : `${node} 的`}卡 ${cards.join("、")}：有余量的卡中最满的（binpack）`,
  "node-gone": ({ node }) => `${node} 已不存在；在 Kubernetes 删除该 Pod 之前，它的占用仍然计算在内`,
  offers: ({ node, names = [] }) => (names.length ? `${node} 提供 ${names.join("、")}` : `${node} 不再提供任何资源`),
  "chosen-by": ({ name = "" }) => `按 ${name} 选择：${PRIORITIES[name] ?? name}`,
  "shared-with": ({ card, count }) => (count ? `卡 ${card}：与另外 ${count} 个共享` : `卡 ${card}：没有共享`),
  policy: ({ name = "" }) => `策略 ${name}：${POLICIES[name] ?? name}`,
  guessed: () => "所在的卡是推测的",
  cordoned: () => "已封锁",
  "not-ready": () => "未就绪",
  "agent-away": () => "agent 不在",
  "other-plugin": ({ names = [] }) => `不提供资源：卡由 ${names.join("、")} 分配，见 docs/migration.md`,
  "cards-out": ({ count }) => `${count} 张卡停用`,
  findings: () => "有异常情况",
  "invalid-node": ({ name }) => (name === undefined ? "配置无效" : `配置无效：${name}`),
  "claim-unreadable": ({ name = "" }) => `ResourceClaim ${name} 无法读取，没有计算在内`,
  assumed: (message) => (NOTES[message.name ?? ""] ?? (() => "节点信息不完整，部分数值是推定的"))(message),
  xid: ({ number }) => `Xid ${number} 错误`,
  "driver-silent": () => "驱动没有响应",
  withheld: (message) => `不提供：${(WITHHELD[message.name ?? ""] ?? (() => message.name ?? ""))(message)}`,
  out: () => "卡异常，被 ConfigMap 停用，或者节点的 agent 不在",
  stranger: ({ number }) => `${process(number)} 不属于任何租户，却在使用卡`,
  trespasser: ({ number }) => `${process(number)} 在使用没有分给它的卡`,
  unregistered: ({ number }) => `${process(number)} 没有注册，不受配额约束`,
  slice: ({ number }) => `${process(number)} 的时间片被别人改动`,
  refused: ({ number }) => `驱动不再允许控制${process(number)}`,
  inert: () => "驱动接受时间片和暂停的设置，但在这张卡上没有效果；租户改由闸门限制",
  page: () => "租户的共享页无法写入",
  silent: () => "卡没有响应",
  overuse: () => "租户占用的显存超过配额",
  ended: ({ number }) => `${process(number)} 因租户显存超限，已被结束或无法结束`,
  "control-proven": ({ name }) => control("硬件控制（已验证）", name),
  "control-unproven": ({ name }) => control("硬件控制（未验证）", name),
  "control-gate": ({ name }) => control("闸门控制", name),
};

const WITHHELD: Record<string, (message: Message) => string> = {
  mig: () => "MIG 模式已开启",
  held: ({ names = [], more = 0 }) =>
    names.length < 2
      ? "被其他设备插件的 Pod 占用"
      : `Pod ${names[0]} 通过 ${names[1]} 占用${more > 0 ? `，另有 ${more} 个 Pod` : ""}`,
  "unknown-holders": () => "kubelet 没有说明其他设备插件的 Pod 占用哪些卡",
};

const NOTES: Record<string, (note: Message) => string> = {
  "part-of-a-card": ({ names = [], number, count }) => `${names[0]} 为 ${number ?? 0}，不是 100 的整数倍：按 ${count ?? 0} 张卡计`,
  "no-card-count": ({ names = [] }) => `${names[0]} 没有说明卡数：按 1 张计`,
  "card-counts-differ": ({ names = [], number, count }) =>
    `${names[0]} 为 ${number ?? 0} 张卡，${names[1]} 为 ${count ?? 0} 张：以前者为准`,
  "no-memory": ({ number }) => `卡的显存未知：每张按 ${mib(number)} 计`,
  "uneven-memory": ({ names = [], number, count }) => `${names[0]} 为 ${number ?? 0}，不能由 ${count ?? 0} 张卡均分：每张向下取整`,
  "memories-differ": ({ names = [], number, count }) =>
    `按 ${names[0]} 每卡 ${number ?? 0} MiB，按 ${names[1]} 每卡 ${count ?? 0} MiB：以前者为准`,
  "unknown-mode": ({ names = [] }) => `标签 ${names[0]} 的值 ${names[1]} 无法识别，视为没有该标签`,
  "bad-factor": ({ names = [] }) => `${names[0]} 的值 ${names[1]} 无效，应为 1.0 到 8.0，例如 "1.5"；目前按 1.0 计`,
  "no-pool": ({ names = [] }) => `${names[0]} 为 ${names[1]}，但节点的 agent 没有主机内存池（--host-pool）：不会超额分配显存`,
  "other-unit": ({ names = [] }) => `节点的 agent 以 MiB 计 ${names[0]}，而集群以 GiB 计：节点不接收这类 Pod`,
};

const CONTROL_REASONS: Record<string, string> = {
  not_tried: "还没有测试：卡一直不空闲",
  inconclusive: "测试过，结果不明确",
  no_cuda: "无法测试：程序找不到 libcuda.so.1",
  no_memory: "无法测试：容器的内存不到 1000 MiB，请调高上限",
  exclusive: "无法测试：这张卡的计算模式只允许一个进程使用；要允许多个：nvidia-smi -c DEFAULT",
  trusted: "按配置不测试",
  forced: "按配置",
  refused: "驱动拒绝控制",
  slices_inert: "时间片在这张卡上没有效果",
  pause_inert: "暂停在这张卡上没有效果",
  both_inert: "时间片和暂停在这张卡上都没有效果",
};

function control(level: string, reason: string | undefined): string {
  return reason === undefined ? level : `${level}：${CONTROL_REASONS[reason] ?? reason}`;
}

export const zhWords: Words = {
  // A newer agent may send codes that this page does not know: they come with English words.
  message: (message) => (Object.hasOwn(MESSAGES, message.code) ? MESSAGES[message.code](message) : message.text),
  refused,
  wants: (wants) => requests(wants.requests),
  detail: (from) => from.detail ?? null,
};
