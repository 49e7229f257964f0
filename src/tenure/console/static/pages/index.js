// @ts-check
/** All pages. A new page is added here; its `nav` puts it into the navigation. */

import { CapacitiesPage } from "./capacities.js";
import { CapacityPage } from "./capacity.js";
import { ClusterPage } from "./cluster.js";
import { FindPage } from "./find.js";
import { JobPage } from "./job.js";
import { OverviewPage } from "./overview.js";
import { OpenPage } from "./open.js";
import { SessionPage } from "./session.js";
import { SessionsPage } from "./sessions.js";

/** @type {import("../core/router.js").PageType[]} */
export const pages = [
  OverviewPage,
  SessionsPage,
  SessionPage,
  OpenPage,
  CapacitiesPage,
  CapacityPage,
  ClusterPage,
  JobPage,
  FindPage,
];
