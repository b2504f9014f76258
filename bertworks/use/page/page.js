"use strict";
fetch("/info").then(answer => answer.json()).then(info => {
  document.getElementById("offers").textContent = info.model_id + ": " + info.abilities.join(", ");
});
