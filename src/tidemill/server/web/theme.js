// Light or dark, before anything is drawn: what the user chose here, else what the system prefers.
// Not a module, because a module would run after the first paint.
(() => {
  const KEY = "tidemill-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(KEY);
  const apply = () => {
    document.documentElement.dataset.theme = chosen() || (system.matches ? "dark" : "light");
    dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  window.toggleTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    if (next === (system.matches ? "dark" : "light")) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
    apply();
  };
  apply();
})();
