// Runs before the page is drawn, so that it never flashes in the other theme. "auto" follows the system.
(function () {
  var theme = null;
  try {
    theme = localStorage.getItem("tenure.theme");
  } catch (error) {
    // Storage is switched off: the system decides.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
