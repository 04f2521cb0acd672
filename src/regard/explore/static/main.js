// The page of a recording, or of two that are compared.

import { readRecording } from "#data/recording.js";
import { RemoteRecording } from "#data/remote.js";
import { Page } from "#page.js";
import { fieldsOf } from "#state/url.js";
import { initialViews, VIEWS } from "#views/index.js";

const recording = readRecording(document, (header) => new RemoteRecording(header));
new Page(fieldsOf(VIEWS, initialViews)).show(recording, window.location.hash);
