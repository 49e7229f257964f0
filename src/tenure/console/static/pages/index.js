// @ts-check
/** All pages. A new page is added here; its `nav` puts it into the navigation. */

import { FindPage } from "./find.js";
import { OverviewPage } from "./overview.js";
import { OpenPage } from "./open.js";
import { SessionPage } from "./session.js";
import { SessionsPage } from "./sessions.js";

/** @type {import("../core/router.js").PageType[]} */
export const pages = [OverviewPage, SessionsPage, SessionPage, OpenPage, FindPage];
