package config
import ("testing";"os")
func FuzzLoad(f *testing.F){
 for _,n:=range []string{"testdata/contract.yaml","testdata/faults.yaml"} { b,_:=os.ReadFile(n); f.Add(b)}
 f.Add([]byte(valid))
 f.Fuzz(func(t *testing.T, b []byte){
   r := newReader(Options{File:"x"}); r.config=Default(); if top:=r.parse(b); top!=nil { r.object(top, []field{optional("sources",readSources),optional("counters",readCounters)}); r.checkSources(); r.checkCounters(); r.checkTargets(); r.refuseUnsupported()}
   if e := r.faults.err(); e!=nil {_ = e.Error()}
 })
}
