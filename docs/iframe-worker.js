/* Pages opened from a disk may start no Web Worker. This runs the search's in a hidden frame of the same page. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const start = () => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        document.body.appendChild(frame);
        const inner = frame.contentWindow;
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => {
          this.inner = inner;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        };
        inner.document.body.appendChild(script);
      };
      document.body ? start() : addEventListener("DOMContentLoaded", start);
    }
    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {}
  };
}
