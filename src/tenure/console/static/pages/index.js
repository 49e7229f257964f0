// @ts-check
/** All pages of the console. Add a new page here. If its class has `nav`, the navigation shows the page. */

import { AlertsPage } from "./alerts.js";
import { AuditPage } from "./audit.js";
import { CapacitiesPage } from "./capacities.js";
import { CapacityPage } from "./capacity.js";
import { ClusterPage } from "./cluster.js";
import { DeliveriesPage } from "./deliveries.js";
import { DeliveryPage } from "./delivery.js";
import { FindPage } from "./find.js";
import { JobPage } from "./job.js";
import { KeysPage } from "./keys.js";
import { OpenPage } from "./open.js";
import { OverviewPage } from "./overview.js";
import { SessionPage } from "./session.js";
import { SessionsPage } from "./sessions.js";
import { UsagePage } from "./usage.js";
import { WindowPage } from "./window.js";

/** @type {import("../core/router.js").PageType[]} */
export const pages = [
  OverviewPage,
  SessionsPage,
  SessionPage,
  OpenPage,
  CapacitiesPage,
  CapacityPage,
  UsagePage,
  WindowPage,
  DeliveriesPage,
  DeliveryPage,
  ClusterPage,
  JobPage,
  AlertsPage,
  AuditPage,
  KeysPage,
  FindPage,
];
