// Applies the stored theme before the page is drawn, so that the page never flashes in the wrong theme. If no theme is
// stored, the page follows the theme of the system.
(function () {
  var theme = null;
  try {
    theme = localStorage.getItem("tenure.theme");
  } catch (error) {
    // Storage is switched off: the page follows the system.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
