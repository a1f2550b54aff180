import { describe, expect, it } from "vitest";

import { MESSAGE_CODES, REASONS, type Message, type Refused } from "../src/contract";
import { WORDS } from "../src/text";

/** Every code with every value it may have; `text` and `detail` are English, as the server sends them. */
const english = { text: "the server says so", detail: "rule so and so is not allowed here" };
const requests = [{ memory_mib: 4096, core: 30 }, { whole: true, count: 2 }, { node: true }, { core: 50, offline: true }];

const refusals: Refused[] = REASONS.flatMap((reason) =>
  [{}, { never: true }, { own: true }, { card: 0, had: 1024 }, { card: 1, node: "n1", never: true, had: 1024 }].map(
    (more) => ({ ...english, reason, nodes: 3, example: "n1", wanted: 2048, dialect: "qgpu", ...more }),
  ),
);

const messages: Message[] = MESSAGE_CODES.flatMap((code) => {
  const values = { node: "n1", card: 0, cards: [0, 1], position: 1, of: 2, names: ["qgpu"], number: 79, dialect: "qgpu" };
  const full = { ...english, code, ...values, count: 3, more: 2, name: "p", wants: requests, refusals };
  return [full, { ...english, code }, { ...full, count: 0, refusals: [], names: [] }];
});

/** Two Latin words in a row, neither of them a name that Chinese text keeps. */
const SENTENCE = /\b(?!kube|binpack|the agent)[a-z]{2,} [a-z]{2,}\b/;

describe("the server's sentences", () => {
  it.each(refusals.map((refused) => [refused.reason, refused] as const))("%s is Chinese in Chinese", (_, refused) => {
    const said = WORDS.zh.refused(refused);
    expect(said).toMatch(/[\u4e00-\u9fff]/);
    expect(said).not.toMatch(SENTENCE);
    expect(said).not.toContain("undefined");
    expect(WORDS.en.refused(refused)).toBe(refused.text);
  });

  it.each(messages.map((message) => [message.code, message] as const))("%s is Chinese in Chinese", (_, message) => {
    const said = WORDS.zh.message(message);
    expect(said).toMatch(/[\u4e00-\u9fff]/);
    expect(said).not.toMatch(SENTENCE);
    expect(WORDS.en.message(message)).toBe(message.text);
  });

  it("of a newer release are shown as they come", () => {
    const unknown = { ...english, code: "of-a-newer-release" } as unknown as Message;
    expect([WORDS.en.message(unknown), WORDS.zh.message(unknown)]).toEqual([english.text, english.text]);
    expect(WORDS.zh.message({ ...english, code: "withheld", name: "of-a-newer-release" })).toBe("不提供：of-a-newer-release");
    const lack = { ...english, reason: "of-a-newer-release", nodes: 1, example: null, card: 0 } as unknown as Refused;
    expect([WORDS.en.refused(lack), WORDS.zh.refused(lack)]).toEqual([english.text, english.text]);
  });

  it("say in Chinese why a card is withheld", () => {
    const held = { ...english, code: "withheld", name: "held", names: ["default/theirs", "nvidia.com/gpu"] } as const;
    const said = [{ ...held, names: [...held.names], more: 2 }, { ...english, code: "withheld", name: "mig" } as const];
    expect(said.map(WORDS.zh.message)).toEqual([
      "不提供：Pod default/theirs 通过 nvidia.com/gpu 占用，另有 2 个 Pod",
      "不提供：MIG 模式已开启",
    ]);
  });

  it("name requests in both languages", () => {
    const wants = { text: "4 GiB, 30%", requests: [{ memory_mib: 4096, core: 30 }] };
    expect([WORDS.en.wants(wants), WORDS.zh.wants(wants)]).toEqual(["4 GiB, 30%", "4 GiB、30%"]);
    expect(WORDS.zh.wants({ text: "", requests })).toBe("4 GiB、30% + 2 张整卡 + 整个节点 + 50% 离线");
  });

  it("keep words of others for the tooltip", () => {
    expect([WORDS.zh.detail(english), WORDS.en.detail(english)]).toEqual([english.detail, null]);
  });
});
