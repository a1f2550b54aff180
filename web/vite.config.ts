import { defineConfig } from "vite";

// Browsers of 2024 and later: light-dark() and color-mix() stay as they are written.
const browsers = ["chrome123", "firefox121", "safari17.5"];

export default defineConfig({
  base: "./", // so that the dashboard also works below a path of somebody's proxy
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/aliquot/static",
    emptyOutDir: true,
    target: browsers,
    cssTarget: browsers,
    assetsInlineLimit: 0, // no data: addresses: the Content-Security-Policy knows only 'self'
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
});
