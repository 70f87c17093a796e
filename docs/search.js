// A pasted message holds signs that mean something to the search: "-x" is "without x",
// "a:b" is "b in the field a". They go, so that the words are looked for.
document.addEventListener("paste", (event) => {
  if (!event.target.matches(".md-search__input")) return;
  const pasted = event.clipboardData.getData("text");
  const words = pasted.replace(/[:~^*"]/g, " ").replace(/(^|[\s(\["'])[-+]+/g, "$1 ");
  event.preventDefault();
  document.execCommand("insertText", false, words.replace(/\s+/g, " ").trim());
});
