// The page: reads the recording, makes the store, and mounts everything on it.

import { readRecording } from "#data/recording.js";
import { RemoteRecording } from "#data/remote.js";
import { exportButtons } from "#export/buttons.js";
import { createStore } from "#state/store.js";
import { Units } from "#state/unit.js";
import { bindAddress, bindNotebook, fieldsOf, fromFragment, inFrame } from "#state/url.js";
import { mountDetails } from "#ui/details.js";
import { mountHeadGrid } from "#ui/head_grid.js";
import { mountHeader } from "#ui/header.js";
import { mountLayout } from "#ui/layout.js";
import { mountLegend } from "#ui/legend.js";
import { mountOptions } from "#ui/options.js";
import { mountTheme } from "#ui/theme.js";
import { View } from "#ui/view.js";
import { initialViews, mountViews, VIEWS } from "#views/index.js";

const find = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const recording = readRecording(document, (header) => new RemoteRecording(header));
const fields = fieldsOf(VIEWS, initialViews);
const store = createStore(fromFragment(window.location.hash, recording, fields));
recording.onUpdate = () => store.set({});
const units = new Units(recording, store);

mountLayout(find);
mountTheme(find("theme"), store);
mountHeader(find, recording, store);
mountHeadGrid(find("overview"), recording, units);
mountLegend(find("legend"), recording, units);
mountOptions(find("legend"), recording, store);
mountViews(find("views"), recording, units, exportButtons);
new View(find("details"), recording, units, { showsGradients: true }).mount(mountDetails);
(inFrame() ? bindNotebook : bindAddress)(store, recording, fields);
