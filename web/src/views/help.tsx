/* Keys and colours. */

import { useEffect, useRef } from "preact/hooks";

import { useShared } from "../hooks";

export function Help({ onClose }: { onClose: () => void }) {
  const { text, world } = useShared();
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      class="help"
      onClose={onClose}
      aria-label={text.help}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}
    >
      <div class="panel-head">
        <h2>{text.help}</h2>
        <button type="button" onClick={() => dialog.current?.close()} aria-label={text.close}>
          ✕
        </button>
      </div>
      <dl>
        {text.keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <dl>
        {(["online", "offline", "normal"] as const).map((name) => (
          <div key={name}>
            <dt>
              <i class={`swatch ${name}`} aria-hidden="true" /> {text[name]}
            </dt>
            <dd>{text.classHelp[name]}</dd>
          </div>
        ))}
      </dl>
      <small>Aliquot {world.state.version}</small>
    </dialog>
  );
}
