// Names for what the theme makes of tables and code after a page is loaded, so that keyboards and readers find them.
const name_parts = () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    Object.assign(table, { tabIndex: 0, role: "group", ariaLabel: "Table" });
  }
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((part) => {
    part.setAttribute("aria-label", `Copy ${part.closest("pre").id}`);
  });
};
new MutationObserver(name_parts).observe(document.documentElement, { childList: true, subtree: true });
name_parts();
