import { render } from "preact";

import { App } from "./app";
import "./style/base.css";
import "./style/top.css";
import "./style/node.css";
import "./style/map.css";
import "./style/below.css";
import "./style/side.css";
import "./style/narrow.css";

render(<App />, document.getElementById("app")!);
