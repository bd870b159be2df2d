// Opens pages in Chromium and prints, as JSON, what axe-core finds and whether a page is wider than its window.
//
//     node look.mjs MODULES CHROMIUM SCREENSHOTS URL...
//
// MODULES is a folder with axe-core and playwright-core; SCREENSHOTS is a folder, or empty for no pictures.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [modules, executablePath, screenshots, ...urls] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];
const browser = await chromium.launch({ executablePath, args });

for (const colorScheme of ["light", "dark"]) {
  for (const url of urls) {
    const page = await browser.newPage({ colorScheme, reducedMotion: "reduce" });
    const elsewhere = [];
    const start = new URL(url);
    page.on("request", (request) => {
      const asked = new URL(request.url());
      if (asked.protocol.startsWith("http") && asked.host !== start.host) elsewhere.push(request.url());
    });
    const broken = [];
    page.on("requestfailed", (request) => broken.push(request.url()));
    page.on("response", (reply) => reply.status() >= 400 && broken.push(reply.url()));
    page.on("pageerror", (error) => broken.push(String(error)));
    await page.goto(url, { waitUntil: "load", timeout: 120_000 });
    await page.evaluate(axe);
    for (const width of [390, 1280, 1920]) {
      await page.setViewportSize({ width, height: 900 });
      await page.waitForTimeout(150);
      const found = await page.evaluate(async () => {
        const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
        return {
          overflow: document.documentElement.scrollWidth - window.innerWidth,
          violations: violations.map(({ id, nodes }) => ({
            id,
            nodes: nodes.map(({ target, html, failureSummary }) => ({ target: target.join(" "), html, failureSummary })),
          })),
        };
      });
      console.log(JSON.stringify({ url, colorScheme, width, elsewhere, broken, ...found }));
      if (screenshots) {
        const name = `${start.pathname.slice(1).replaceAll("/", "-")}-${width}-${colorScheme}.png`;
        await page.screenshot({ path: `${screenshots}/${name}` });
      }
    }
    await page.close();
  }
}
await browser.close();
